"""Requests that a hostile but well-spoken client could send: every field of every version has a value of its type,
drawn by a seed from what means something to the broker and from the edges of the type."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from wire import cluster, codec, group_transactions, layouts, private_api
from wire.apis import APIS, ApiKey
from wire.batch import TRANSACTIONAL_BIT
from wire.building import EPOCH
from wire.errors import ErrorCode
from wire.records import Record, build_batch
from wire.schema import EntityClass, FieldSchema, fields_of, message_class

TOPICS = ("t", "c", "new", "in", "", ".", "..", "../up", "a/b", "x" * 249, "x" * 250, "\0", "schön")
NAMES: dict[str, Sequence[str]] = {
    "topic": TOPICS,
    "name": (*TOPICS, "cleanup.policy", "retention.ms", "message.max.bytes", "range", "1", "tx-0", "g"),
    "value": ("compact", "delete", "-1", "0", "1", "9" * 30, "", "true", "x", "compact,delete", "1e3"),
    "transactional_id": ("tx-0", "tx-1", "", "x" * 300, "/", "\U0010ffff"),
    "group": ("g", "classic", "modern", "", "/", "x" * 300, "\U0010ffff"),
    "member_id": ("", "m", "x" * 300),
    "assignor": ("uniform", "range", "", "x"),
    "protocol": ("consumer", "range", "", "connect"),
    "regex": ("t.*", "(", "[", "(a+)+$", ".*" * 50, ""),
    "key": ("tx-0", "g", "", "classic"),
    "resource_name": ("t", "1", "", "0", "x"),
    "states": ("Stable", "Empty", "Ongoing", "", "nonsense"),
}
SMALL = (-1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 7, 100, 1000, 30_000)


def _integer(bits: int, chance: random.Random) -> int:
    limit = 1 << bits - 1
    value = (
        chance.choice(SMALL) if chance.random() < 0.8 else chance.choice((-limit, limit - 1, -2, limit >> 1))
    )
    return max(-limit, min(limit - 1, value))


def _text(name: str, chance: random.Random) -> str:
    for part, values in NAMES.items():
        if part in name:
            return chance.choice(values)
    return chance.choice(("", "t", "g", "consumer", "x" * 40))


def _records(chance: random.Random) -> bytes:
    """A batch as a producer sends it, of one that the broker may or may not know."""
    transactional = chance.random() < 0.4
    known = transactional or chance.random() < 0.4
    data = build_batch(
        [
            Record(chance.choice((None, b"k", b"")), chance.choice((None, b"v", b"v" * 900)), timestamp=stamp)
            for stamp in [chance.choice((0, -1, 1_700_000_000_000, 1 << 60))] * chance.choice((1, 1, 2, 20))
        ],
        compression=chance.choice((0, 0, 0, 1, 2, 3, 4)),
        producer_id=chance.choice((0, 1, 2, 1000)) if known else -1,
        producer_epoch=chance.choice((0, 0, 1, 2, 32767)) if known else -1,
        base_sequence=chance.choice((0, 0, 1, 2, 0x7FFFFFFF)) if known else -1,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
    )
    return data if chance.random() < 0.9 else data * 2


def _bytes(chance: random.Random) -> bytes:
    subscription = struct.pack(">hih1sihi", 0, 1, 1, b"t", 0, 0, 0)
    return chance.choice((b"", subscription, subscription[:5], bytes(2), b"\xff" * 9, chance.randbytes(20)))


def _scalar(field: FieldSchema, chance: random.Random) -> Any:
    kind = field.kafka_type
    if kind == "string":
        return _text(field.name, chance)
    if kind == "records":
        return _records(chance)
    if kind == "bytes":
        return _bytes(chance)
    if kind == "bool":
        return chance.random() < 0.5
    if kind == "uuid":
        return chance.choice((None, UUID(int=chance.choice((1, 7, 1 << 100)))))
    if kind == "error_code":
        return chance.choice(list(ErrorCode))
    if kind == "float64":
        return chance.choice((0.0, -1.5, 1e300, float("inf")))
    if kind.startswith("timedelta"):
        return timedelta(milliseconds=_integer(32, chance))
    if kind == "datetime_i64":
        return EPOCH + timedelta(milliseconds=chance.choice((0, 1, 1_700_000_000_000)))
    if kind.startswith("uint"):
        return chance.choice((0, 1, 100, 9092, 65_535))
    return _integer(int(kind[3:]), chance)


def entity(kind: EntityClass, chance: random.Random) -> Any:
    """An instance of one message class."""
    return kind(**{field.name: _value(field, chance) for field in fields_of(kind)})


def _value(field: FieldSchema, chance: random.Random) -> Any:
    if field.nullable and (field.tag is None or field.default is None) and chance.random() < 0.15:
        return None
    if field.tag is not None and chance.random() < 0.5:
        return field.default

    def one() -> Any:
        return entity(field.entity, chance) if field.entity is not None else _scalar(field, chance)

    return tuple(one() for _ in range(chance.choice((0, 1, 1, 1, 2, 3)))) if field.is_array else one()


def _layout(chance: random.Random) -> layouts.Request:
    topic = chance.choice(("t", "t", "c", "missing"))
    index = chance.choice((0, 1, 2, 2, 3, 1000))
    return chance.choice(
        (
            layouts.Split(topic=topic, at=(index, *chance.choice(((), (1,), (2, 1))))),
            layouts.Merge(topic=topic, first=chance.choice((0, 1)), last=index),
            layouts.Seal(topic=topic, partition=index),
            layouts.Describe(topic=topic),
        )
    )


def _group_transaction(chance: random.Random) -> group_transactions.Request:
    names = {
        "sink": chance.choice(("s", "s", "x" * 249, "/")),
        "batch": chance.choice((0, 1, 1, (1 << 63) - 1)),
        "attempt": chance.choice(("a", "a", "b")),
    }
    member = group_transactions.Member(
        chance.choice(("tx-0", "tx-1", "x")), chance.choice((0, 1, 2, -1)), chance.choice((0, 1, 2, 3))
    )
    offset = group_transactions.Offset(
        "g", chance.choice(("t", "missing")), chance.choice((0, -1)), chance.choice((1, -1))
    )
    return chance.choice(
        (
            group_transactions.Enlist(
                **names,
                member=member,
                timeout_ms=chance.choice((1, 1000, 1 << 52)),
                generation=chance.choice((0, 1, 5)),
            ),
            group_transactions.Commit(
                **names, members=(member,) * chance.choice((0, 1, 1, 2)), offsets=(offset,)
            ),
            group_transactions.Abort(**names),
            group_transactions.Extend(**names, timeout_ms=chance.choice((1, 1 << 52))),
            group_transactions.Describe(**names),
        )
    )


def _cluster(chance: random.Random) -> cluster.Request:
    node, dry_run = chance.choice((0, 1, 2, (1 << 31) - 1)), chance.random() < 0.3
    return chance.choice(
        (
            cluster.Status(),
            cluster.Add(
                node=node, dry_run=dry_run, peer=chance.choice(("", "h:1")), rack=chance.choice(("", "a"))
            ),
            cluster.Drain(node=node, dry_run=dry_run, undo=chance.random() < 0.5),
            cluster.Remove(node=node, dry_run=dry_run),
        )
    )


def request(chance: random.Random, correlation_id: int) -> tuple[int, int, bytes]:
    """(API key, version, frame) of a request that its schema can write."""
    if chance.random() < 0.1:
        key, message = chance.choice(
            (
                (ApiKey.SEALOG_LAYOUT, _layout(chance)),
                (ApiKey.SEALOG_GROUP_TRANSACTION, _group_transaction(chance)),
                (ApiKey.SEALOG_CLUSTER, _cluster(chance)),
            )
        )
        return key, 0, private_api.encode_request(key, correlation_id, "fuzz", message)
    while True:
        spec = chance.choice([spec for spec in APIS.values() if not spec.is_private])
        version = chance.randint(spec.min_served, spec.max_version)
        try:
            message = entity(message_class(spec.key, version, "request"), chance)
            return spec.key, version, codec.encode_request(spec.key, version, correlation_id, "fuzz", message)
        except (struct.error, ValueError, TypeError):
            continue  # this version cannot say that
