"""SIGKILL at random moments under transactional load: nothing acknowledged is lost, nothing aborted shows.

SEALOG_CRASH_ROUNDS: how many kills. SEALOG_CRASH_SEED: repeats a plan.
"""

import os

from tests.crash.isolated import isolated
from tests.crash.rounds import CrashRun, Plan, chosen_seed
from tests.support.broker_process import BrokerProcess

ROUNDS = int(os.environ.get("SEALOG_CRASH_ROUNDS", "100"))


def test_sigkill_at_random_moments(tmp_path):
    isolated(kill_at_random_moments, tmp_path)


def kill_at_random_moments(folder):
    broker = BrokerProcess(folder / "data")
    try:
        run = CrashRun(broker, Plan(chosen_seed(), ROUNDS))
        violations = run.run()
    finally:
        broker.end()
    print(run.report())
    assert not violations, run.told(violations)
    # An open transaction outlives the broker: its producer ends it on the restarted one.
    assert run.load.counts["commit acked over a crash"] > 0 or ROUNDS < 20
