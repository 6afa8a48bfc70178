"""What the model is asked: small sets of clients, each with the bounds within which all is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.sim_node import SimClient, batch
from support.sim_producer import Producer, create_topic, produce_fields

from model.world import CRASHES, Script, Step, Txn, World
from wire import group_transactions as messages
from wire import layouts, private_api
from wire.apis import ApiKey
from wire.errors import ErrorCode

OK = ErrorCode.none
ALL_CRASHES = tuple(CRASHES)
CUTS = ("lose all", "keep metadata", "keep data")


def _ignore(_: World, __: Any) -> None:
    return


class Writer:
    """A producer's steps, each a request of its own. Its transactions are named by their number."""

    def __init__(self, world: World, name: str, *, v2: bool = True) -> None:
        self.world = world
        self.producer = Producer(world.client(), name, v2=v2)
        assert self.producer.init() is OK
        self.name = name
        self.number = 0
        self.refused = False
        """A write of this transaction was refused: as every client does then, it aborts."""
        self.txn: Txn = self._next()

    def _next(self) -> Txn:
        self.number += 1
        self.refused = False
        txn = self.world.txns[f"{self.name}.{self.number}"] = Txn(f"{self.name}.{self.number}")
        return txn

    def send(self, partition: int) -> tuple[Step, Any]:
        def step(world: World, client: SimClient) -> int:
            value = f"{self.txn.name}:{partition}:{len(self.txn.values.get(partition, ()))}".encode()
            self.txn.values.setdefault(partition, []).append(value)
            producer = self.producer
            sequence = producer.sequences.get(("t", partition), 0)
            producer.sequences["t", partition] = sequence + 1
            data = batch(
                value,
                producer_id=producer.producer_id,
                epoch=producer.epoch,
                sequence=sequence,
                transactional=True,
            )
            return client.send(
                ApiKey.PRODUCE, 12, **produce_fields("t", {partition: data}, transactional_id=self.name)
            )

        def heard(_: World, answer: Any) -> None:
            codes = [one.error_code for topic in answer.responses for one in topic.partition_responses]
            self.refused |= codes != [OK]

        return step, heard

    def end(self, commit: bool) -> tuple[Step, Any]:
        def step(_: World, client: SimClient) -> int:
            if commit and not self.refused:
                self.txn.commit_asked = True
            self.producer.client = client
            return self.producer.end_request(commit and not self.refused)

        def heard(_: World, answer: Any) -> None:
            if self.producer.take_end(answer) is OK:
                if commit and not self.refused:
                    self.txn.committed = True
                else:
                    self.txn.aborted = True
                self.txn = self._next()

        return step, heard

    def again(self, commit: bool) -> tuple[Step, Any]:
        """The same EndTxn after a crash, as a client that heard nothing sends it (T5)."""
        return self.end(commit)


def _arranged(world: World, partitions: int, ranges: int) -> World:
    create_topic(world.client(), "t", partitions)
    if ranges > 1:
        topic = world.node.topics.get("t")
        assert topic is not None
        answers: list[object] = []
        world.node.layouts.split(topic, (1,), answers.append)
        world.scheduler.run_until(lambda: bool(answers))
    world.scheduler.advance(1_000)
    return world


def _begun(world: World) -> World:
    world.scheduler.advance(1_000)
    world.disk.holding = True
    return world


def _script(world: World, steps: list[Any], after_crash: list[Any] | None = None) -> None:
    world.scripts.append(Script(world, steps, after_crash or []))


def _private(key: ApiKey, request: Any) -> Step:
    def step(_: World, client: SimClient) -> int:
        client._correlation_id += 1
        client._asked.append((key, 0, client._correlation_id))
        client.session.received(private_api.encode_request(key, client._correlation_id, "sim", request))
        return client._correlation_id

    return step


def parallel_prepare(crashes: int = 1, fails: int = 1) -> World:
    """One transaction over two ranges and the metadata store: three flushes in every order, lost, failed, repeated."""
    world = _arranged(World({"crash": crashes, "fail": fails}, ALL_CRASHES), 2, 2)
    writer = Writer(world, "a")
    _script(world, [writer.send(0), writer.send(1), writer.end(True)], [writer.again(True)])
    return _begun(world)


def two_at_once(crashes: int = 1) -> World:
    """One commits and one aborts, over the same two ranges, each in the other's way."""
    world = _arranged(World({"crash": crashes}, ALL_CRASHES), 2, 2)
    first, second = Writer(world, "a"), Writer(world, "b")
    _script(world, [first.send(0), first.send(1), first.end(True)])
    _script(world, [second.send(1), second.send(0), second.end(False)])
    return _begun(world)


def settlement(crashes: int = 1, ticks: int = 1) -> World:
    """An aborted and a committed transaction are settled pass by pass while a third one stays open; then a crash."""
    world = _arranged(World({"crash": crashes, "tick": ticks}, CUTS), 1, 1)
    first, second = Writer(world, "a"), Writer(world, "b")
    _script(world, [first.send(0), first.end(False), first.send(0), first.end(True)])
    _script(world, [second.send(0)])
    return _begun(world)


def settlement_passes(crashes: int = 1, ticks: int = 3) -> World:
    """The same over several passes: too many states to see all of them."""
    return settlement(crashes, ticks)


def group(crashes: int = 1) -> World:
    """Two votes and a commit that names one: the winner shows, the other never, and a repeat hears so (T10)."""
    world = _arranged(World({"crash": crashes}, ALL_CRASHES), 2, 2)
    writers = [Writer(world, name) for name in ("w", "l")]
    members = []
    for number, writer in enumerate(writers):
        producer = writer.producer
        members.append(messages.Member(producer.name, producer.producer_id, producer.epoch))
        enlist = messages.Enlist(sink="s", batch=1, attempt="a", member=members[-1], timeout_ms=60_000)
        client = world.client()
        asked = _private(ApiKey.SEALOG_GROUP_TRANSACTION, enlist)(world, client)
        world.scheduler.run_until(lambda client=client, asked=asked: asked in client.answers)
        step, _ = writer.send(number)
        sent = step(world, client)
        world.scheduler.run_until(lambda client=client, sent=sent: sent in client.answers)

    def vote(writer: Writer) -> tuple[Step, Any]:
        def step(_: World, client: SimClient) -> int:
            writer.producer.client = client
            return writer.producer.end_request(True)

        return step, _ignore

    winner, loser = (writer.txn for writer in writers)
    loser.aborted = True  # whatever happens, it must never show

    def commit() -> tuple[Step, Any]:
        request = messages.Commit(sink="s", batch=1, attempt="a", members=(members[0],))
        ask = _private(ApiKey.SEALOG_GROUP_TRANSACTION, request)

        def step(world: World, client: SimClient) -> int:
            winner.commit_asked = True
            return ask(world, client)

        def heard(_: World, answer: Any) -> None:
            if answer.error == 0:
                winner.committed = True

        return step, heard

    _script(world, [vote(writers[0]), commit()], [commit()])
    _script(world, [vote(writers[1])])
    return _begun(world)


def split(crashes: int = 1) -> World:
    """A range is split under an open transaction, which goes on into the children and commits (S1, S2)."""
    world = _arranged(World({"crash": crashes}, ALL_CRASHES), 2, 1)
    writer = Writer(world, "a")
    _script(world, [writer.send(0), writer.send(1), writer.send(0), writer.end(True)], [writer.again(True)])
    change = _private(ApiKey.SEALOG_LAYOUT, layouts.Split(topic="t", at=(1,)))
    _script(world, [(change, _ignore)])
    return _begun(world)


def retired_parent(crashes: int = 1, fails: int = 1) -> World:
    """The split is done, its parent has not flushed yet, and the transaction goes on in the children: positions in all
    three logs, flushed in every order (S1)."""
    world = _arranged(World({"crash": crashes, "fail": fails}, ALL_CRASHES), 2, 1)
    topic = world.node.topics.get("t")
    assert topic is not None
    parent = topic.ranges[0].active.path
    writer = Writer(world, "a")
    _script(
        world,
        [writer.send(0), writer.send(1), writer.send(0), writer.send(1), writer.end(True)],
        [writer.again(True)],
    )
    _begun(world)
    for _ in range(2):
        world.act(("go", "0"))
    answers: list[object] = []
    world.node.layouts.split(topic, (1,), answers.append)
    while not answers:
        world.scheduler.run_ready()
        for held in sorted(world.disk.held):
            if held[1] != parent:
                world.disk.complete(held)
    assert len(topic.ranges) == 2
    return world


SCENARIOS: dict[str, Callable[..., World]] = {
    "parallel-prepare": parallel_prepare,
    "two-at-once": two_at_once,
    "settlement": settlement,
    "settlement-passes": settlement_passes,
    "group": group,
    "split": split,
    "retired-parent": retired_parent,
}
