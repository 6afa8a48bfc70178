"""The settings of brokers that are changed while they run, where ranges have groups of their own.

    /broker-config/all-brokers        what is set for all of them
    /broker-config/node-<id>          for one node: the controller records both, as it was asked

Every node follows the records and puts in force what they say of it, over what its own file says. What a node does not
take (its file may say something that does not go with it, or it is an older program) it leaves out, and says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.broker_settings import BrokerSettings, Level
from broker.config import BrokerConfig
from txn import keys
from txn.metastore import Event, MetaStore

log = logging.getLogger("sealog")


def record_of(level: Level, node_id: int) -> str:
    """The key of what is set for all brokers, or for that one."""
    return keys.broker_config(level.value if level is Level.ALL_BROKERS else f"node-{node_id}")


class FollowedSettings:
    """Of one node. `in_force(config)` whenever something else is."""

    def __init__(self, config: BrokerConfig, in_force: Callable[[BrokerConfig], None]) -> None:
        self.settings = BrokerSettings(config)
        self._node_id = config.node_id
        self._in_force = in_force
        self._view: MetaStore | None = None

    def watch(self, view: MetaStore) -> None:
        self._view = view
        view.watch(self._told, prefix=keys.BROKER_CONFIGS)

    def _told(self, _: list[Event]) -> None:
        assert self._view is not None
        before = self.settings.current
        # What was set goes first: one level is not checked against what the other was.
        self.settings.clear()
        for level in (Level.ALL_BROKERS, Level.BROKER):
            record = self._view.get(record_of(level, self._node_id))
            for reason in self.settings.restore(level, record.value) if record is not None else ():
                log.warning("a setting of brokers is left out: %s", reason)
        if self.settings.current != before:
            self._in_force(self.settings.current)
