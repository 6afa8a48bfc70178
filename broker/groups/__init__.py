"""Consumer groups as pure state machines, of the classic protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) and of
the new one (ConsumerGroupHeartbeat, KIP-848), which is in `consumer`.

`groups` is all that the rest of the broker needs. Of the classic protocol start reading at `coordinator`; `rebalance`
and `join` are the protocol, `group` the bookkeeping.
"""

from broker.groups.config import GroupConfig
from broker.groups.consumer.config import ConsumerConfig, MigrationPolicy
from broker.groups.consumer.group import GroupChange
from broker.groups.consumer.messages import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    HeartbeatRequest,
    HeartbeatResult,
)
from broker.groups.consumer.record import StoredGroup
from broker.groups.consumer.states import ConsumerGroupState
from broker.groups.coordinator import GroupCoordinator
from broker.groups.groups import Groups
from broker.groups.messages import (
    CLASSIC_TYPE,
    CONSUMER_TYPE,
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
    "CLASSIC_TYPE",
    "CONSUMER_TYPE",
    "BadGroupRecord",
    "ConsumerConfig",
    "ConsumerGroupDescription",
    "ConsumerGroupState",
    "ConsumerMemberDescription",
    "GroupChange",
    "GroupConfig",
    "GroupCoordinator",
    "GroupDescription",
    "GroupOverview",
    "GroupRecord",
    "GroupState",
    "Groups",
    "HeartbeatRequest",
    "HeartbeatResult",
    "JoinRequest",
    "JoinResult",
    "JoinedMember",
    "LeaveRequest",
    "LeaveResult",
    "LeavingMember",
    "LeftMember",
    "MemberDescription",
    "MigrationPolicy",
    "Store",
    "StoredGroup",
    "SyncRequest",
    "SyncResult",
)
