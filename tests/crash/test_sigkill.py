"""SIGKILL at random moments under transactional load: nothing acknowledged is lost, nothing aborted shows."""

import os
import random

from tests.crash.rounds import CrashRun, Plan
from tests.support.broker_process import BrokerProcess

ROUNDS = int(os.environ.get("SEALOG_CRASH_ROUNDS", "200"))
SEED = int(os.environ.get("SEALOG_CRASH_SEED", "0")) or random.randrange(1, 1 << 31)


def test_sigkill_at_random_moments(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        broker.end()
        run = CrashRun(broker, Plan(SEED, ROUNDS))
        violations = run.run()
        print(run.report())
    assert not violations, "\n".join(str(v) for v in violations[:30])
