"""Exhaustive search over the states of a scenario, each state once, by replaying the actions that lead to it.

What is one state, `model.canonical` says. Two crashes that leave the same behind are one: the second is not replayed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from model import canonical
from model.world import Action, Broken, World


@dataclass(frozen=True, slots=True)
class Found:
    """An invariant that does not hold, and the shortest of the action sequences that were met on the way there."""

    error: BaseException
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number}. {' '.join(action)}" for number, action in enumerate(self.actions, 1))
        return f"{type(self.error).__name__}: {self.error}\n{steps}"


@dataclass(slots=True)
class Explored:
    """`whole`: every state within the bounds was seen."""

    states: int = 0
    steps: int = 0
    replays: int = 0
    ends: int = 0
    whole: bool = False
    found: Found | None = None
    seconds: float = 0.0


def explore(
    make: Callable[[], World],
    *,
    max_states: int = 1 << 60,
    finish_every: int = 1,
    breadth_first: bool = False,
) -> Explored:
    """Search from `make()` on. Ends at the first state that is broken, or after so many states.

    Every `finish_every`-th state, and each without actions, is let run to its end and started again. Depth first saves
    replays, `breadth_first` gives the shortest way to what is found.
    """
    result = Explored()
    began = time.process_time()
    seen: set[int] = set()
    todo: deque[tuple[Action, ...]] = deque([()])
    while todo and result.states < max_states:
        path = todo.popleft() if breadth_first else todo.pop()
        try:
            world = _replay(make, path)
            result.replays += 1
            while True:
                key = canonical.key(world)
                if key in seen:
                    break
                seen.add(key)
                result.states += 1
                actions: list[Action] = []
                for action in world.actions():
                    if action[0] == "crash":
                        key = canonical.crash_key(world, action[1])
                        if key in seen:
                            continue
                        seen.add(key)
                    actions.append(action)
                if not actions or result.states % finish_every == 0:
                    result.ends += 1
                    if not actions:
                        world.finish()
                        break
                    _replay(make, path).finish()
                if breadth_first:
                    todo += [(*path, action) for action in actions]
                    break
                todo += [(*path, action) for action in reversed(actions[1:])]
                path = (*path, actions[0])
                world.act(actions[0])
                world.check()
                result.steps += 1
        except Exception as error:  # noqa: BLE001 whatever it is, it was found
            result.found = Found(error, path)
            break
    result.whole = not todo and result.found is None
    result.seconds = time.process_time() - began
    return result


def _replay(make: Callable[[], World], path: tuple[Action, ...]) -> World:
    world = make()
    for action in path:
        world.act(action)
        world.check()
    return world


def is_broken(error: BaseException) -> bool:
    """Whether an invariant said so, and not a crash of the code."""
    return isinstance(error, Broken)
