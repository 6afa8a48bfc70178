"""The segments of a simulated node's topics: sealed by hand, and compared with what is on its disk."""

from __future__ import annotations

from support.sim_node import SimNode

from storage.format import segment_name


def seal(world: SimNode, partition: int = 0, *, topic: str = "t") -> None:
    """Seal the active segment of a partition's range, and wait until no segment lacks its footer."""
    found = world.node.topics.get(topic)
    assert found is not None
    answers: list[object] = []
    world.node.layouts.seal(found, partition, answers.append)
    world.scheduler.run_until(lambda: bool(answers))
    world.scheduler.run_until(
        lambda: all(one.state == "SEALED" for log in found.ranges for one in log.segments[:-1])
    )


def files_on_disk(world: SimNode) -> list[str]:
    """The names of all segment files."""
    return sorted(
        path
        for folder in world.disk.list("topics")
        for path in world.disk.list(f"topics/{folder}")
        if path.endswith(".seg")
    )


def files_named(world: SimNode) -> list[str]:
    """The files that the layouts name, where nothing was compacted."""
    return sorted(segment_name(segment_id) for segment_id in world.node.topics.segment_topics())
