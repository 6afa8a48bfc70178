"""Makes a failing plan smaller: faults, actors and time are taken away while it still fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.plan import Plan


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, tries: int = 120) -> Plan:
    """The smallest plan found that still fails; `fails` runs one. A smaller one may fail for another reason."""
    left = tries

    def attempt(smaller: Plan) -> bool:
        nonlocal left, plan
        if left <= 0:
            return False
        left -= 1
        if not fails(smaller):
            return False
        plan = smaller
        return True

    changed = True
    while changed and left > 0:
        changed = False
        for what in ("faults", "actors"):
            size = max(1, len(getattr(plan, what)) // 2)
            while size:
                at = 0
                while at < len(getattr(plan, what)):
                    gone = frozenset(range(at, min(at + size, len(getattr(plan, what)))))
                    if attempt(plan.without(**{what: gone})):
                        changed = True
                    else:
                        at += size
                size //= 2
        while plan.duration_ms > 200 and attempt(replace(plan, duration_ms=plan.duration_ms * 2 // 3)):
            changed = True
    return plan
