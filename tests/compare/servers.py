"""Apache Kafka and sealog side by side, both started a second time so that there is an older leader epoch."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from tests.compare.cases import Case
from tests.compare.compared import Found, differing
from tests.compare.differences import on_purpose
from tests.compare.side import Side
from tests.support.broker_process import BrokerProcess, ServerProcess
from tests.support.kafka_process import KafkaProcess

ATTEMPTS = 3

OLD_TOPIC = "old.topic"
"""Written to before the second start and after it: the one topic with two leader epochs."""

KAFKA_SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    # As sealog's defaults: nothing else about the groups differs then.
    "group.min.session.timeout.ms": "1000",
    "group.coordinator.rebalance.protocols": "classic,consumer",
    # A new target is made by the heartbeat that wants it, as sealog does for small groups: nothing to wait for.
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.assignor.offload.enable": "false",
    # On a loaded machine the node must not lose its own session: its partitions would get other leader epochs.
    "broker.session.timeout.ms": "30000",
}
SEALOG_SETTINGS = ("auto_create_topics = false",)


class Outcome(NamedTuple):
    """What a case asked, as (API, version), and what the two answered differently."""

    case: str
    asked: frozenset[tuple[str, int]]
    found: list[Found]


class Servers:
    """Both servers, one case after the other."""

    def __init__(self, folder: Path) -> None:
        config = folder / "sealog.toml"
        config.write_text("\n".join(SEALOG_SETTINGS))
        self.kafka: ServerProcess = KafkaProcess(folder / "kafka", settings=KAFKA_SETTINGS)
        self.sealog: ServerProcess = BrokerProcess(folder / "sealog", args=["--config", str(config)])
        self._epochs: dict[str, list[int]] = {}
        self._stack = ExitStack()
        self._threads = ThreadPoolExecutor(2)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._threads.shutdown)
            stack.enter_context(self.kafka)
            stack.enter_context(self.sealog)
            self._both(self._first_life)
            self._both(lambda server: self._of(server).restart())
            self._both(self._second_life)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, case: Case) -> Outcome:
        """Raises AssertionError where one of them does not answer.

        What differs is asked again under other names, and counts only if it does so each time: Apache Kafka learns of
        new topics and assigns their partitions in the background.
        """
        outcome = self._once(case, case.id)
        for again in range(1, ATTEMPTS):
            if all(on_purpose(found) for found in outcome.found):
                break
            outcome = self._once(case, f"{case.id}-again-{again}")
        return outcome

    def _once(self, case: Case, name: str) -> Outcome:
        with ExitStack() as stack:
            sides = {}
            for server in ("kafka", "sealog"):
                side = Side(server, self._of(server).address, name)
                side.epochs[OLD_TOPIC] = self._epochs[server]
                sides[server] = stack.enter_context(side)
            self._both(lambda server: case.run(sides[server], case.version))
            asked = frozenset((step.api, step.version) for step in sides["sealog"].steps)
            found = [each._replace(case=case.id) for each in differing(sides["kafka"], sides["sealog"])]
            return Outcome(case.id, asked, found)

    def _of(self, server: str) -> ServerProcess:
        return self.kafka if server == "kafka" else self.sealog

    def _both(self, work: Callable[[str], None]) -> None:
        """Do it on both at once. Raises what was raised, sealog's first."""
        doing = [self._threads.submit(work, server) for server in ("sealog", "kafka")]
        for each in doing:
            each.exception()
        for each in doing:
            each.result()

    def _first_life(self, server: str) -> None:
        with Side(server, self._of(server).address, "old") as side:
            side.topic()
            side.values(OLD_TOPIC, b"a", b"b")
            self._epochs[server] = [side.leader_epoch(OLD_TOPIC)]

    def _second_life(self, server: str) -> None:
        with Side(server, self._of(server).address, "old") as side:
            side.wait_for_leader(OLD_TOPIC, 0)
            side.values(OLD_TOPIC, b"c")
            self._epochs[server].append(side.leader_epoch(OLD_TOPIC))
            # Both coordinators are there from here on.
            side.quiet.init_producer("old")
            side.until(lambda answer: answer.error_code == 0, "find_coordinator", 1, key="old", key_type=0)
            side.call("heartbeat", 0, group_id="old", generation_id=0, member_id="")
