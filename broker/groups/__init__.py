"""Consumer groups: the classic protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) as pure state machines.

Start reading at `coordinator`, which is all that the rest of the broker needs; `rebalance` and `join` are the
protocol, `group` the bookkeeping.
"""

from broker.groups.config import GroupConfig
from broker.groups.coordinator import GroupCoordinator
from broker.groups.messages import (
    GroupDescription,
    GroupOverview,
    JoinedMember,
    JoinRequest,
    JoinResult,
    LeaveRequest,
    LeaveResult,
    LeavingMember,
    LeftMember,
    MemberDescription,
    SyncRequest,
    SyncResult,
)
from broker.groups.rebalance import Store
from broker.groups.record import BadGroupRecord, GroupRecord
from broker.groups.states import GroupState

__all__ = (
    "BadGroupRecord",
    "GroupConfig",
    "GroupCoordinator",
    "GroupDescription",
    "GroupOverview",
    "GroupRecord",
    "GroupState",
    "JoinRequest",
    "JoinResult",
    "JoinedMember",
    "LeaveRequest",
    "LeaveResult",
    "LeavingMember",
    "LeftMember",
    "MemberDescription",
    "Store",
    "SyncRequest",
    "SyncResult",
)
