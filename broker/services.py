"""What is built on the metadata store alone: the broker's settings, consumer groups and their offsets.

A broker by itself has them (`broker.node`), and so has the node of a cluster that leads the metadata
(`broker.ranges.controller`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from broker import group_views
from broker.broker_settings import BrokerSettings, Level, broker_level
from broker.config import BrokerConfig
from broker.group_store import GroupStore
from broker.groups import ConsumerConfig, GroupConfig, Groups, MigrationPolicy
from broker.offset_expiry import OffsetExpiry
from broker.topics import storage_error
from storage.clock import Scheduler, Timer
from txn import keys
from txn.coordinator import Coordinator
from txn.metastore import MetaStore, Put, StoreFailed
from txn.offsets import GroupOffsets
from wire.errors import KafkaError

log = logging.getLogger("sealog")


class StoreServices:
    """`topics` is whatever knows the topics."""

    store: MetaStore
    topics: Any
    offsets: GroupOffsets
    coordinator: Coordinator
    groups: Groups
    offset_expiry: OffsetExpiry

    def __init__(self, scheduler: Scheduler, config: BrokerConfig, new_uuid: Callable[[], UUID]) -> None:
        self.scheduler = scheduler
        self.settings = BrokerSettings(config)
        self.config = config
        """What is in force: it changes with the settings."""
        self._new_uuid = new_uuid
        self._group_timer: Timer | None = None
        self._group_timer_at_ms = 0

    # -- consumer groups

    def _group_config(self) -> GroupConfig:
        config, limits = self.config, self.config.limits
        return GroupConfig(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_groups=limits.groups,
            max_members_per_group=limits.group_members,
        )

    def _consumer_config(self) -> ConsumerConfig:
        config = self.config
        return ConsumerConfig(
            session_timeout_ms=config.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            assignment_interval_ms=config.group_consumer_assignment_interval_ms,
            assignors=tuple(dict.fromkeys(config.group_consumer_assignors)),
            migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
        )

    def _open_groups(self) -> Groups:
        self._group_store = GroupStore(self.store, self.scheduler, self.arm_group_timer)
        groups = Groups(
            self._group_config(),
            self._consumer_config(),
            self.topics,
            new_member_id=lambda client_id: f"{client_id}-{self._new_uuid()}",
            store=self._group_store.change,
        )
        groups.load(self._group_store.load(), self.scheduler.monotonic_ms())
        return groups

    def arm_group_timer(self) -> None:
        """Call after anything that may have moved a group's next deadline."""
        deadline_ms = self.groups.next_deadline()
        if deadline_ms is None:
            return
        if self._group_timer is not None:
            if self._group_timer_at_ms <= deadline_ms:
                return
            self._group_timer.cancel()
        self._group_timer_at_ms = deadline_ms
        delay_ms = max(0, deadline_ms - self.scheduler.monotonic_ms())
        self._group_timer = self.scheduler.call_later(delay_ms, self._tick_groups)

    def _tick_groups(self) -> None:
        self._group_timer = None
        self.groups.tick(self.scheduler.monotonic_ms())
        self.arm_group_timer()

    def _open_offset_expiry(self) -> OffsetExpiry:
        expiry = OffsetExpiry(
            self.store,
            self.scheduler,
            self.offsets,
            self.groups.describe,
            lambda: [group.group_id for group in group_views.all_groups(self)],
            lambda group_id: self.groups.delete(group_id, lambda _: None),
            self._group_store.empty_since_ms,
        )
        expiry.configure(
            self.config.offsets_retention_minutes * 60_000, self.config.offsets_retention_check_interval_ms
        )
        return expiry

    # -- settings

    def _configure_id_expiry(self) -> None:
        config = self.config
        self.coordinator.id_expiry.configure(
            config.transactional_id_expiration_ms,
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
        )
        self.coordinator.sink_expiry.configure(
            config.sink_expiration_ms, config.transaction_remove_expired_transaction_cleanup_interval_ms
        )

    def _restore_settings(self) -> None:
        for level in Level:
            record = self.store.get(keys.broker_config(level.value))
            for reason in self.settings.restore(level, record.value) if record is not None else ():
                log.warning("a stored setting is left out: %s", reason)
        self.config = self.settings.current

    def settings_of(self, name: str) -> tuple[Level, str]:
        """The level and the record of what a broker resource of this name means; "" is all brokers.

        Raises:
            KafkaError: INVALID_REQUEST for another broker's id.
        """
        level = broker_level(self.config.node_id, name)
        return level, keys.broker_config(level.value)

    def stored_settings(self, record_key: str) -> dict[str, str]:
        """What the next change on this record builds on: durable or not, it will be in force."""
        record = self.store.get(record_key)
        return dict(record.value) if record is not None else {}

    def configure(
        self,
        level: Level,
        record_key: str,
        values: dict[str, str],
        done: Callable[[KafkaError | None], None],
    ) -> None:
        """Replace what is set on a level by these checked values; in force, and `done`, when that is durable."""
        try:
            lsn = self.store.apply([Put(record_key, values)]).lsn
        except StoreFailed as failure:
            done(storage_error("settings", failure))
            return
        self.settings.stored(level, values)

        def durable(error: Exception | None) -> None:
            if error is not None:
                done(storage_error("settings", error))
                return
            self.settings.put(level, values)
            self._put_settings_in_force()
            done(None)

        self.store.when_durable(lsn, durable)

    def _put_settings_in_force(self) -> None:
        self.topics.reconfigure(self.settings.current)
        self._reconfigure()

    def _reconfigure(self) -> None:
        config = self.config = self.settings.current
        self.coordinator.limit_timeouts(config.transaction_max_timeout_ms)
        self._configure_id_expiry()
        self.groups.reconfigure(self._group_config())
        self.offset_expiry.configure(
            config.offsets_retention_minutes * 60_000, config.offsets_retention_check_interval_ms
        )
