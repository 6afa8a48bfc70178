"""One step of a member towards its target assignment.

Guarantees:

- A partition is given to a member only when it is free, or was the member's own; so it never has two owners.
- A member is told of its new epoch only when it has given up all that the target takes from it.
- Nothing is assigned of a topic that the member is not subscribed to, whatever an older target says.

Source: KIP-848, "Reconciliation of a group".
"""

from __future__ import annotations

from collections.abc import Callable, Container
from uuid import UUID

from broker.groups.consumer.member import Epochs, Member, MemberState, Partitions


def reconcile(
    member: Member,
    *,
    target_epoch: int,
    target: Partitions,
    subscribed: Container[UUID],
    owned: Partitions | None,
    is_free: Callable[[UUID, int], bool],
    subscription_changed: bool,
) -> Member:
    """The member after one request of its.

    `target` is its assignment in `target_epoch`, `subscribed` the ids of its topics, `owned` what it says that
    it holds; None where it says nothing. `is_free` tells of partitions that nobody owns.
    """
    if member.state is MemberState.REVOKING and _holds(owned, member.revoking):
        return _unsubscribe(member, subscribed, owned) if subscription_changed else member
    if member.is_settled(target_epoch):
        return _unsubscribe(member, subscribed, owned) if subscription_changed else member
    return _advance(member, target_epoch, target, subscribed, owned, is_free)


def _advance(
    member: Member,
    target_epoch: int,
    target: Partitions,
    subscribed: Container[UUID],
    owned: Partitions | None,
    is_free: Callable[[UUID, int], bool],
) -> Member:
    assigned: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    granted: dict[UUID, list[int]] = {}
    waits = False
    for topic_id in target.keys() | member.assigned.keys():
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        current = member.assigned.get(topic_id, {})
        kept = {partition: epoch for partition, epoch in current.items() if partition in wanted}
        if kept:
            assigned[topic_id] = kept
        if len(kept) < len(current):
            revoking[topic_id] = {p: epoch for p, epoch in current.items() if p not in wanted}
        # What it has just given up may come back to it: a newer target can say so.
        just_revoked = member.revoking.get(topic_id, {})
        for partition in wanted:
            if partition not in kept:
                if partition in just_revoked or is_free(topic_id, partition):
                    granted.setdefault(topic_id, []).append(partition)
                else:
                    waits = True
    if revoking and _holds(owned, revoking):
        return member.moved(MemberState.REVOKING, epoch=member.epoch, assigned=assigned, revoking=revoking)
    for topic_id, partitions in granted.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(partitions, target_epoch))
    state = MemberState.WAITING if waits else MemberState.STABLE
    return member.moved(state, epoch=target_epoch, assigned=assigned)


def _unsubscribe(member: Member, subscribed: Container[UUID], owned: Partitions | None) -> Member:
    """Take away at once what a smaller subscription leaves no reason for; the next target follows later."""
    dropped = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return member
    assigned = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id in subscribed}
    revoking: dict[UUID, dict[int, int]] = {t: dict(epochs) for t, epochs in member.revoking.items()}
    for topic_id, epochs in dropped.items():
        revoking.setdefault(topic_id, {}).update(epochs)
    if _holds(owned, revoking):
        return member.moved(MemberState.REVOKING, epoch=member.epoch, assigned=assigned, revoking=revoking)
    return member.moved(member.state, epoch=member.epoch, assigned=assigned)


def _holds(owned: Partitions | None, epochs: Epochs) -> bool:
    """Whether the client still holds some of these. One that says nothing of what it owns may."""
    if owned is None:
        return True
    return any(not owned.get(topic_id, frozenset()).isdisjoint(held) for topic_id, held in epochs.items())
