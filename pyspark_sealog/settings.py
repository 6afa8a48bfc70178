"""The `kafka.*` options: how to reach the broker, and how much to ask of it at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_sealog.errors import OptionError
from wire.batch import (
    COMPRESSION_GZIP,
    COMPRESSION_LZ4,
    COMPRESSION_NONE,
    COMPRESSION_SNAPPY,
    COMPRESSION_ZSTD,
)

COMPRESSIONS: Final = {
    "none": COMPRESSION_NONE,
    "gzip": COMPRESSION_GZIP,
    "snappy": COMPRESSION_SNAPPY,
    "lz4": COMPRESSION_LZ4,
    "zstd": COMPRESSION_ZSTD,
}
ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}

_FIXED: Final = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": "offsets are kept in the query's checkpoint",
    "kafka.group.id": "offsets are kept in the query's checkpoint, not in a consumer group",
    "kafka.key.deserializer": "keys are bytes; see keyFormat",
    "kafka.value.deserializer": "values are bytes; see valueFormat",
    "kafka.key.serializer": "keys are bytes or strings",
    "kafka.value.serializer": "values are bytes or strings",
    "kafka.interceptor.classes": "there are no interceptors",
    "kafka.enable.idempotence": "the sink is always idempotent",
    "kafka.transactional.id": "the sink makes its own; see sinkId",
    "kafka.acks": "the sink always waits for acks=all",
}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Times in seconds, sizes in bytes."""

    servers: tuple[tuple[str, int], ...]
    client_id: str = "pyspark-sealog"
    isolation_level: int = ISOLATION_LEVELS["read_committed"]
    api_timeout_s: float = 60.0
    request_timeout_s: float = 30.0
    fetch_bytes: int = 8 * 1024 * 1024
    fetch_max_wait_ms: int = 500
    check_crcs: bool = True
    compression: int = COMPRESSION_NONE
    batch_bytes: int = 512 * 1024
    request_bytes: int = 8 * 1024 * 1024
    transaction_timeout_ms: int = 300_000

    @property
    def servers_text(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.servers)


_KNOWN: Final = (
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.isolation.level",
    "kafka.default.api.timeout.ms",
    "kafka.request.timeout.ms",
    "kafka.max.partition.fetch.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.check.crcs",
    "kafka.compression.type",
    "kafka.batch.size",
    "kafka.max.request.size",
    "kafka.transaction.timeout.ms",
    "kafka.security.protocol",
)


def client_settings(options: Mapping[str, str]) -> ClientSettings:
    """Of all options of a source or sink, the `kafka.*` ones. Raises OptionError."""
    ours = {name.lower(): value for name, value in options.items() if name.lower().startswith("kafka.")}
    for name in ours:
        if name in _FIXED:
            raise OptionError(f"option {name} cannot be set: {_FIXED[name]}")
    check_names(ours, _KNOWN)
    if "kafka.bootstrap.servers" not in ours:
        raise OptionError("option kafka.bootstrap.servers is missing: HOST:PORT of the broker")
    if ours.get("kafka.security.protocol", "PLAINTEXT").upper() != "PLAINTEXT":
        raise OptionError("option kafka.security.protocol: sealog serves PLAINTEXT alone")
    default = ClientSettings(())
    return ClientSettings(
        servers=_servers(ours["kafka.bootstrap.servers"]),
        client_id=ours.get("kafka.client.id", default.client_id),
        isolation_level=choice(ours, "kafka.isolation.level", ISOLATION_LEVELS, default.isolation_level),
        api_timeout_s=whole(ours, "kafka.default.api.timeout.ms", 60_000, least=1) / 1000,
        request_timeout_s=whole(ours, "kafka.request.timeout.ms", 30_000, least=1) / 1000,
        fetch_bytes=whole(ours, "kafka.max.partition.fetch.bytes", default.fetch_bytes, least=1),
        fetch_max_wait_ms=whole(ours, "kafka.fetch.max.wait.ms", default.fetch_max_wait_ms, least=0),
        check_crcs=boolean(ours, "kafka.check.crcs", default.check_crcs),
        compression=choice(ours, "kafka.compression.type", COMPRESSIONS, default.compression),
        batch_bytes=whole(ours, "kafka.batch.size", default.batch_bytes, least=1),
        request_bytes=whole(ours, "kafka.max.request.size", default.request_bytes, least=1),
        transaction_timeout_ms=whole(
            ours, "kafka.transaction.timeout.ms", default.transaction_timeout_ms, least=1
        ),
    )


def _servers(text: str) -> tuple[tuple[str, int], ...]:
    servers = []
    for part in text.split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise OptionError(f"option kafka.bootstrap.servers: {part.strip()!r} is not HOST:PORT")
        servers.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return tuple(servers)


def check_names(options: Iterable[str], known: Iterable[str]) -> None:
    """Raise OptionError for a name that does not exist, with the one that may be meant."""
    names = {name.lower(): name for name in known}
    for name in options:
        if name.lower() not in names:
            near = difflib.get_close_matches(name.lower(), names, 1)
            hint = f"; is {names[near[0]]} meant?" if near else f"; there are {', '.join(names.values())}"
            raise OptionError(f"there is no option {name}{hint}")


def whole(
    options: Mapping[str, str], name: str, default: int, *, least: int = 0, most: int = (1 << 63) - 1
) -> int:
    """A whole number within limits."""
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise OptionError(f"option {name}: {text!r} is not a whole number") from None
    if not least <= value <= most:
        raise OptionError(f"option {name}: {value} is not within {least}..{most}")
    return value


def boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    return bool(choice(options, name, {"true": 1, "false": 0}, int(default)))


def choice(options: Mapping[str, str], name: str, choices: Mapping[str, int], default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in choices:
        raise OptionError(f"option {name}: {text!r} is none of {', '.join(choices)}")
    return choices[text.lower()]
