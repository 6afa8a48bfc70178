"""The states of a consumer group of the new protocol, as clients are shown them (KIP-848)."""

from __future__ import annotations

from enum import Enum


class ConsumerGroupState(Enum):
    """A group's state; the value is the name that clients are shown. It follows from the members and epochs."""

    EMPTY = "Empty"
    """No members. Epochs are kept, so that they never repeat while the group exists."""

    ASSIGNING = "Assigning"
    """The target assignment is older than the last change of members, subscriptions or topics."""

    RECONCILING = "Reconciling"
    """Some members are not yet where the target assignment wants them."""

    STABLE = "Stable"
