"""Random splits, merges and seals under transactional load, with kills and power cuts in between.

The same checker as for the kills alone judges what clients saw. SEALOG_SHAKING_ROUNDS: how many crashes;
SEALOG_CRASH_SEED repeats a plan.
"""

import os

import pytest

from tests.crash.isolated import isolated
from tests.crash.rounds import CrashRun, Plan, PoweredMachine, chosen_seed
from tests.crash.shaker import Shaker
from tests.support.broker_process import BrokerProcess

ROUNDS = int(os.environ.get("SEALOG_SHAKING_ROUNDS", "16"))
CHANGES = 200


@pytest.mark.parametrize("crash", ["kill", "power cut"])
def test_layouts_change_under_load_and_crashes(tmp_path, crash):
    isolated(shake, tmp_path, crash)


def shake(folder, crash):
    machine = PoweredMachine(folder / "data") if crash == "power cut" else None
    broker = machine.broker if machine else BrokerProcess(folder / "data")
    seed = chosen_seed()
    plan = Plan(
        seed,
        ROUNDS,
        check_every=8,
        warmup_s=1.2,
        commit_delay_s=machine.commit_delay_s if machine else (0.0, 0.004),
    )
    shakers = []

    def shaker(load):
        shakers.append(Shaker(broker.address, load, seed))
        return shakers[0]

    try:
        run = CrashRun(broker, plan, machine.cut if machine else None, shaker)
        violations = run.run()
    finally:
        if machine:
            machine.end()
        else:
            broker.end()
    print(run.report())
    counts = shakers[0].counts
    print(f"  changes of layouts: {dict(counts)}")
    assert not violations, run.told(violations)
    assert not [what for what in counts if what.startswith("refused")], counts
    assert shakers[0].changes >= CHANGES or ROUNDS < 16, counts
    assert min(counts[what] for what in ("split", "merge", "seal")) > 0
