"""Decoding of Produce requests that are too large to be copied.

Guarantee: the same message as the ordinary decoder's, but for the records of each partition, which are a view of the
request where those are a copy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from kio.serial import entity_reader

from wire.apis import ApiKey
from wire.framing import LARGE_FRAME_BYTES
from wire.guard import Body, MalformedRequest, lifting_guard_for
from wire.schema import message_class


def decode(version: int, body: Body) -> Any:
    """Raises MalformedRequest, and what kio raises for values that do not fit."""
    entity = message_class(ApiKey.PRODUCE, version, "request")
    safe, lifted = lifting_guard_for(entity)(body)
    if len(safe) > LARGE_FRAME_BYTES:
        raise MalformedRequest(f"{len(safe)} bytes of a Produce beside its records")
    message, _ = _reader(version)(safe, 0)
    views = iter(lifted)
    return replace(
        message,
        topic_data=tuple(
            replace(
                topic,
                partition_data=tuple(
                    part if part.records is None else replace(part, records=next(views))
                    for part in topic.partition_data
                ),
            )
            for topic in message.topic_data
        ),
    )


@cache
def _reader(version: int) -> Any:
    return entity_reader(message_class(ApiKey.PRODUCE, version, "request"))
