"""The power cuts find brokers that are wrong on purpose: else their silence about the right one says nothing."""

import pytest

from tests.crash.isolated import isolated
from tests.crash.mutants import MUTANTS
from tests.crash.rounds import CrashRun, Plan, PoweredMachine, chosen_seed
from tests.support.broker_process import BrokerDied

ROUNDS = 60


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_power_cuts_find_the_mutant(tmp_path, name):
    isolated(find_the_mutant, tmp_path, name)


def find_the_mutant(folder, name):
    machine = PoweredMachine(folder / "data", module="tests.crash.mutants", module_args=[name])
    plan = Plan(
        chosen_seed(),
        ROUNDS,
        check_every=4,
        moments=("any", "commit", "commit"),
        commit_delay_s=machine.commit_delay_s,
    )
    try:
        run = CrashRun(machine.broker, plan, machine.cut)
        found = [str(violation) for violation in run.run()]
    except BrokerDied as died:
        # It found on its own, too late, that what it had promised is gone.
        found = [
            line
            for line in str(died).splitlines()
            if "LostCommit" in line
            or "was committed, but flushed data" in line
            or "was durable up to" in line
        ]
        if not found:
            raise
    finally:
        machine.end()
    print("\n".join(found[:5]))
    assert found, f"{ROUNDS} rounds did not find it:\n{run.report()}"
