"""The options of the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_sealog.errors import OptionError
from pyspark_sealog.options import common_options
from pyspark_sealog.settings import ClientSettings, choice, client_settings, whole

_SINK: Final = ("topic", "sinkId", "batchId", "newCheckpoint", "includeHeaders")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    client: ClientSettings
    topic: str | None
    """Where rows go; without it each row says so in its column `topic`."""
    sink_id: str | None
    batch_id: int | None
    skip_batches_of_others: bool


def sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Raises OptionError."""
    client = client_settings(options)
    ours = common_options(options, _SINK)
    sink_id = ours.get("sinkid")
    if sink_id is not None and not 1 <= len(sink_id) <= 200:
        raise OptionError("option sinkId has 1 to 200 characters")
    batch_id = whole(ours, "batchId", 0) if "batchid" in ours else None
    if streaming and batch_id is not None:
        raise OptionError(
            "option batchId is for batch writes alone: a streaming query has batch ids of its own"
        )
    if batch_id is not None and sink_id is None:
        raise OptionError("option batchId needs sinkId: the two together name what is written once")
    if not streaming and sink_id is not None and batch_id is None:
        raise OptionError(
            "option sinkId of a batch write needs batchId: the two together name what is written once"
        )
    topic = ours.get("topic")
    if topic == "":
        raise OptionError("option topic is empty")
    skip = choice(ours, "newCheckpoint", {"fail": 0, "skip": 1}, 0)
    return SinkOptions(client, topic, sink_id, batch_id, bool(skip))
