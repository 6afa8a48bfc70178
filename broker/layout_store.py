"""Conditional writes on the records under `/layout/`: every change of a topic's segments goes through here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.layouts import Layout
from storage.layout import LayoutChanged
from txn import keys
from txn.metastore import Conflict, MetaStore, Op, Put, StoreFailed

Changed = Callable[[Exception | None], None]


class LayoutStore:
    """The layouts of all topics."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store

    def get(self, topic: str) -> Layout | None:
        record = self._store.get(keys.layout(topic))
        return record.value if record is not None else None

    def change(
        self, topic: str, changed: Callable[[Layout], Layout], done: Changed, *, more_ops: Sequence[Op] = ()
    ) -> None:
        """Replace a layout by what `changed` makes of it, in one batch with `more_ops`; `done` when that is durable.

        Errors: LayoutChanged (the topic is gone, `changed` raised it, or another write came first; nothing was
        written), OSError (the store failed: what the layout is, a restart finds out).
        """
        record = self._store.get(keys.layout(topic))
        if record is None:
            done(LayoutChanged(f"topic {topic!r} is being deleted"))
            return
        try:
            put = Put(keys.layout(topic), changed(record.value), record.version)
            lsn = self._store.apply([put, *more_ops]).lsn
        except (LayoutChanged, Conflict) as lost:
            done(lost if isinstance(lost, LayoutChanged) else LayoutChanged(str(lost)))
            return
        except StoreFailed as failure:
            done(OSError(str(failure)))
            return
        self._store.when_durable(lsn, lambda error: done(OSError(str(error)) if error else None))
