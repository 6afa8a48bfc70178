"""What every answer of sealog's own APIs begins with."""

from __future__ import annotations

from msgspec import Struct

from wire.errors import ErrorCode


class Answer(Struct, frozen=True, kw_only=True):
    """`error` is a Kafka error code, 0 for none; `message` says more for people."""

    error: int = 0
    message: str | None = None

    @property
    def error_code(self) -> ErrorCode:
        return ErrorCode(self.error)
