"""What is each server's own in an answer, and what stands in its place when answers are compared.

This is the only place where anything is taken out of the comparison without being in `differences`; every rule says
why. Ids that a server gave out become their number in the order of appearance, so that a wrong id still shows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tests.clients.raw_batches import CONTROL, parse
from tests.compare.plain import Plain
from tests.compare.side import Side, Step

NO_ID = str(UUID(int=0))
READ_COMMITTED = 1
NO_OFFSET = 1 << 60


class Numbers:
    """Numbers for what a server chose, counted up in the order of appearance."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> str:
        return f"<{self._word} {self._numbers.setdefault(value, len(self._numbers))}>"


@dataclass(frozen=True)
class Place:
    """Where in an answer a value is: the partition it is about, as far as its surroundings name one."""

    topic: str = ""
    partition: int = 0


class Normaliser:
    """One transcript's values as they are compared."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._markers: dict[Place, list[int]] = {}
        self._names = {str(topic_id): name for name, topic_id in side.topics.items()}
        self._producer = Numbers("producer id")
        self._topic_id = Numbers("topic id")
        self._member = Numbers("member id")
        self._rules: dict[str, Callable[[Any, Place], Plain]] = {
            # Each server numbers producers, topics and members as it likes.
            **dict.fromkeys(("producer_id", "ongoing_txn_producer_id"), self._a_producer_id),
            "v3_and_below_producer_id": self._a_producer_id,
            "producer_id_filters": lambda value, _: [self._producer(each) for each in value],
            "topic_id": lambda value, _: self._topic_id(value) if value not in (None, NO_ID) else None,
            "member_id": self._a_member_id,
            "leader": self._a_member_id,  # of a classic group
            # Addresses, folders and sizes on the disk are of this run.
            "port": lambda value, _: "<port>" if value > 0 else value,
            "cluster_id": lambda value, _: value and "<cluster id>",
            "log_dir": lambda value, _: value and "<folder>",
            **dict.fromkeys(
                ("total_bytes", "usable_bytes"), lambda value, _: "<bytes>" if value > 0 else value
            ),
            "partition_size": lambda value, _: "<bytes>" if value > 0 else value,
            # Moments; what is no moment (-1) is compared.
            "log_append_time": _a_moment,
            "transaction_start_time": _a_moment,
            # Texts are for people and say more here than there; the codes beside them are compared.
            "error_message": lambda *_: "<text>",
            "batch_index_error_message": lambda *_: "<text>",
            "documentation": lambda value, _: value and "<text>",
            # Counts the changes of features, by each server's own count of starts.
            "finalized_features_epoch": lambda value, _: "<epoch>" if value >= 0 else value,
            # A leader epoch counts elections there, starts of the broker here: how they lie to each other is compared.
            **dict.fromkeys(
                ("leader_epoch", "current_leader_epoch", "last_fetched_epoch"), self._a_leader_epoch
            ),
            # Apache Kafka's offsets have holes where the markers are; sealog has no markers (design, section 1).
            **dict.fromkeys(
                (
                    "base_offset",
                    "high_watermark",
                    "last_stable_offset",
                    "log_start_offset",
                    "fetch_offset",
                    "end_offset",
                    "low_watermark",
                    "current_txn_start_offset",
                ),
                self._an_offset,
            ),
        }

    def request(self, step: Step) -> Plain:
        return self._walk(step, step.request, Place())

    def answer(self, step: Step) -> Plain:
        return self._walk(step, step.answer, Place())

    def _walk(self, step: Step, value: Plain, place: Place) -> Plain:
        if isinstance(value, list):
            return [self._walk(step, each, place) for each in value if self._is_of_the_case(step, each)]
        if not isinstance(value, dict):
            return value
        place = self._within(value, place)
        if step.api == "fetch" and isinstance(value.get("records"), bytes | None) and "records" in value:
            value = self._delivered(step, value, place)
        found: dict[str, Plain] = {}
        for name, each in value.items():
            rule = self._rules.get(name)
            if name == "offset" and step.api in ("list_offsets", "delete_records"):
                rule = self._an_offset
            if name == "partitions" and step.api == "describe_transactions":
                each = sorted(each)  # a set there
            if name == "records" and isinstance(each, bytes):
                # Of a request: the producer's id is inside.
                each = f"<{len(each)} bytes>"
            found[name] = self._walk(step, each, place) if rule is None else rule(each, place)
        return found

    def _within(self, value: dict[str, Plain], place: Place) -> Place:
        topic, partition = place.topic, place.partition
        for name in ("topic", "name", "topic_name", "topic_id"):
            named = value.get(name)
            if isinstance(named, str) and named:
                topic = self._names.get(named, named)
        for name in ("partition", "index", "partition_index"):
            if isinstance(value.get(name), int):
                partition = value[name]
        return Place(topic, partition)

    def _is_of_the_case(self, step: Step, value: Plain) -> bool:
        """Lists of all there is hold what other cases made, too."""
        of_all = {
            "metadata": "name",
            "describe_log_dirs": "name",
            "list_groups": "group_id",
            "list_transactions": "transactional_id",
            "describe_topic_partitions": "name",
        }
        named = value.get(of_all.get(step.api, "")) if isinstance(value, dict) else None
        return not named or named.startswith(f"{self._side.case}.")

    # -- rules

    def _a_producer_id(self, value: int, _: Place) -> Plain:
        return value if value < 0 else self._producer(value)

    def _a_member_id(self, value: str, _: Place) -> Plain:
        return self._member(value) if value else value

    def _a_leader_epoch(self, value: int, place: Place) -> Plain:
        known = self._side.epochs.get(place.topic)
        if value < 0 or known is None:
            return value
        if value in known:
            return f"<epoch {known.index(value) - len(known) + 1}>"
        return "<a later epoch>" if value > known[-1] else "<an epoch between>"

    def _an_offset(self, value: int, place: Place) -> Plain:
        if not 0 < value < NO_OFFSET:
            return value
        if place not in self._markers:
            self._markers[place] = self._side.markers(place.topic, place.partition)
        return value - sum(marker < value for marker in self._markers[place])

    def _delivered(self, step: Step, value: dict[str, Plain], place: Place) -> dict[str, Plain]:
        """What a client delivers of these records: not the aborted ones, nor markers. Where it goes on is compared.

        Apache Kafka sends all and names the aborted in `aborted_transactions`, sealog leaves them out (design, 8).
        """
        committed = step.request.get("isolation_level") == READ_COMMITTED
        dropped: dict[int, list[int]] = {}
        for each in value.get("aborted_transactions") or ():
            dropped.setdefault(each["producer_id"], []).append(each["first_offset"])
        batches = []
        position = None
        for each in parse(value["records"] or b""):
            position = each.last_offset + 1
            firsts = dropped.get(each.pid, [])
            if each.is_control:
                # The marker ends its producer's transaction: if it was an aborted one, the next may not be.
                if firsts and firsts[0] <= each.base_offset:
                    firsts.pop(0)
            elif not (committed and firsts and firsts[0] <= each.base_offset):
                batches.append(
                    {
                        "base_offset": each.base_offset,
                        "end_offset": each.last_offset,
                        "attributes": each.attributes,
                        "producer_id": each.pid,
                        "epoch": each.epoch,
                        "sequence": each.sequence,
                        "leader_epoch": each.leader_epoch,
                        "whole": each.crc_ok,
                        "values": each.values if not each.attributes & 7 else each.count,
                    }
                )
        assert not any(batch["attributes"] & CONTROL for batch in batches)
        kept = {name: each for name, each in value.items() if name != "aborted_transactions"}
        return kept | {
            "records": batches if value["records"] is not None else None,
            "position": position and self._an_offset(position, place),
        }


def _a_moment(value: int | None, _: Place) -> Plain:
    return "<moment>" if value is not None and value > 0 else value
