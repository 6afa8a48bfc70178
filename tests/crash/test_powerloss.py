"""Power cuts at random moments under transactional load: what a flush didn't cover may be gone, and no promise
breaks for it.

SEALOG_POWERLOSS_ROUNDS: how many cuts. SEALOG_CRASH_SEED: repeats a plan.
"""

import os

from tests.crash.isolated import isolated
from tests.crash.rounds import CrashRun, Plan, PoweredMachine, chosen_seed

ROUNDS = int(os.environ.get("SEALOG_POWERLOSS_ROUNDS", "60"))


def test_power_cuts_at_random_moments(tmp_path):
    isolated(cut_power_at_random_moments, tmp_path)


def cut_power_at_random_moments(folder):
    machine = PoweredMachine(folder / "data")
    try:
        plan = Plan(chosen_seed(), ROUNDS, check_every=20, commit_delay_s=machine.commit_delay_s)
        run = CrashRun(machine.broker, plan, machine.cut)
        violations = run.run()
    finally:
        machine.end()
    print(run.report())
    print(f"  bytes that no flush had covered: {machine.lost_bytes}")
    assert not violations, run.told(violations)
    assert machine.lost_bytes > 0, "no cut met anything unflushed: the test shows nothing"
