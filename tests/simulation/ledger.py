"""Transactions that read lists and append to them, each list by one transactional id: Elle's histories over a log."""

from __future__ import annotations

from tests.history import ListRead
from tests.simulation.network import Gone
from tests.simulation.readers import read_once
from tests.simulation.transactions import Failed, Instance, Transactor

KEYS = 3


class Ledger(Transactor):
    """Its partitions (`partitions`) are its own, so its lists are to be as if its transactions ran one by one.

    An instance reads after it fenced its predecessors: what is committed then is all that ever will be by them.
    """

    count = 0

    async def body(self, instance: Instance, number: int) -> None:
        topic, partitions = self.options["topic"], self.options["partitions"]
        lists = await self._read(instance, topic, partitions)
        keys = self.random.sample(range(KEYS), self.random.choice((1, 2)))
        for at in keys:
            # Both partitions hold a list per key number; a transaction may append to several, in several requests.
            for partition in self.random.sample(partitions, self.random.choice((1, len(partitions)))):
                key = f"{self.name}/{partition}/{at}"
                self.note(ListRead(instance.history_name, number, key, tuple(lists.get(key, ()))))
                values = []
                for _ in range(self.random.choice((1, 1, 2))):
                    self.count += 1
                    values.append((key, f"{key}#{self.count}"))
                await instance.write(number, topic, {partition: values})
                self.maybe_replaced()

    async def _read(self, instance: Instance, topic: str, partitions: list[int]) -> dict[str, list[str]]:
        """All lists, up to a last stable offset that nothing holds back. Raises Failed, Gone."""
        known: dict[int, int] = getattr(instance, "positions", None) or dict.fromkeys(partitions, 0)
        lists: dict[str, list[str]] = getattr(instance, "lists", None) or {}
        left = set(partitions)
        for _ in range(30):
            asked = {partition: known[partition] for partition in sorted(left)}
            found = await read_once(self, instance.link, topic, asked, committed=True, max_wait_ms=0)
            known.update(asked)
            for partition, read in found.items():
                for _, value in read.records:
                    lists.setdefault(value.partition("#")[0], []).append(value)
                if read.position >= read.high_watermark:
                    left.discard(partition)
            if not left:
                instance.positions, instance.lists = known, lists  # type: ignore[attr-defined]
                return lists
            await self.pause(20)
        raise Gone("the end is held back")


__all__ = ["Failed", "Ledger"]
