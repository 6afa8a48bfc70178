"""Group transactions (design T10): many producers' transactions that end as one, batch after batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.history import Begun, EndCalled, Ended
from tests.simulation.actor import Actor, Link
from tests.simulation.network import Gone
from tests.simulation.transactions import Failed, Instance
from wire import group_transactions as messages
from wire.errors import ErrorCode


@dataclass(slots=True)
class _Attempt:
    number: int
    """In the history: one transaction of the sink."""
    batch: int
    name: str
    members: list[messages.Member]


class GroupSink(Actor):
    """A coordinator and its writers. Each attempt at a batch is one transaction of the history, of all members."""

    count = 0
    attempts = 0

    async def run(self) -> None:
        batch = 0
        self.v2 = self.options.get("v2", True)
        while not self.over:
            attempt, whole = await self._attempt(batch)
            if await self._end(attempt, commit=whole and self.random.random() < 0.8):
                batch += 1
            await self.pause(60)
        # An attempt without an outcome would hold readers back until its deadline. The broker may never have heard of
        # the last ones: then it is an earlier one that is left.
        for number in range(1, self.attempts + 1):
            await self._answer(messages.Abort(sink=self.name, batch=batch, attempt=f"a{number}"))
        for number in range(self.options["members"]):
            await self._instance(number).init()

    def _instance(self, number: int) -> Instance:
        self.count += 1
        return Instance(self, f"{self.name}-m{number}", self.count, v2=self.v2, timeout_ms=60_000)

    async def _attempt(self, batch: int) -> tuple[_Attempt, bool]:
        """Enlist, write, vote; whether all have voted, or there is an outcome already."""
        self.attempts += 1
        attempt = _Attempt(self.attempts, batch, f"a{self.attempts}", [])
        self.note(Begun(self.name, attempt.number))
        topic = self.options["topic"]
        for number in range(self.options["members"]):
            instance = self._instance(number)
            await instance.init()
            instance.history_name = self.name
            member = messages.Member(instance.name, instance.producer_id, instance.epoch)
            try:
                enlisted = await self._ask(
                    instance.link,
                    messages.Enlist(
                        sink=self.name,
                        batch=batch,
                        attempt=attempt.name,
                        generation=attempt.number,
                        member=member,
                        timeout_ms=60_000,
                    ),
                )
                if enlisted.error:
                    return attempt, False
                if enlisted.repeated:
                    # What another attempt did counts for this batch; this one writes nothing.
                    return attempt, True
                for _ in range(self.random.choice((1, 2))):
                    self.count += 1
                    partition = self.random.randrange(self.world.partitions[topic])
                    value = f"{self.name}.{self.count}"
                    await instance.write(attempt.number, topic, {partition: [(None, value)]})
            except (Failed, Gone):
                return attempt, False
            if await instance.end_quietly(commit=True) != "acked":
                return attempt, False
            attempt.members.append(member)
        return attempt, True

    async def _end(self, attempt: _Attempt, *, commit: bool) -> bool:
        """Until it is answered; whether the batch is done."""
        self.note(EndCalled(self.name, attempt.number, commit))
        request: Any = messages.Abort(sink=self.name, batch=attempt.batch, attempt=attempt.name)
        if commit:
            request = messages.Commit(
                sink=self.name, batch=attempt.batch, attempt=attempt.name, members=tuple(attempt.members)
            )
        answer, unanswered = await self._answer(request)
        outcome: Any = "acked"
        if answer.error:
            lost = unanswered or answer.error == ErrorCode.coordinator_not_available
            outcome = "unknown" if lost else "failed"
        elif answer.repeated and (not commit or answer.attempt != attempt.name):
            # A repeated outcome is that of the attempt it names, which may be another one than this.
            outcome = "failed"
        elif commit:
            self.world.count("group transactions committed")
        self.note(Ended(self.name, attempt.number, commit, outcome))
        if outcome == "unknown" and commit:
            # Until somebody says what became of it the batch is tried again; who comes late hears that.
            return False
        return not answer.error and (commit or answer.repeated)

    async def _answer(self, request: Any) -> tuple[messages.Response, bool]:
        """The answer, and whether an earlier one may have been lost."""
        unanswered = False
        while True:
            try:
                return await self._ask(self.link, request), unanswered
            except Gone:
                unanswered = True
                await self.pause(40)

    @staticmethod
    async def _ask(link: Link, request: messages.Request) -> messages.Response:
        connection = await link.connection()
        answer: messages.Response = await connection.ask_group(request)
        return answer
