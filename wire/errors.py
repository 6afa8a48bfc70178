"""Kafka's error codes, and the exception that carries one to whoever answers the client.

Guarantee: a `KafkaError` always names a code a client knows; its message is for the client and for the log.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

__all__ = ("NO_ERROR", "ErrorCode", "KafkaError")

NO_ERROR: Final = ErrorCode.none


class KafkaError(Exception):
    """A refusal that Kafka has a code for.

    `message` goes to the client where the response has a field for it; None where the code says it all.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code: Final = code
        self.message: Final = message

    @property
    def retriable(self) -> bool:
        """Whether clients try again by themselves on this code."""
        return self.code.retriable

    def __str__(self) -> str:
        return self.code.name if self.message is None else f"{self.code.name}: {self.message}"
