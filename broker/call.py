"""One request on its way to its answer: what a handler gets beside the decoded message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Buffer

from broker.read_ahead import ReadAhead
from wire import codec

Deliver = Callable[[Sequence[Buffer] | None], None]


class Call:
    """Answers exactly once: `answer` by fields, `answer_raw` by encoded bytes, or `answer_nothing` (acks = 0)."""

    __slots__ = (
        "_deliver",
        "abandoned",
        "answered",
        "api_key",
        "client_host",
        "client_id",
        "correlation_id",
        "disconnect",
        "is_held",
        "next_step",
        "on_release",
        "read_ahead",
        "size_bytes",
        "version",
    )

    def __init__(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        client_host: str,
        deliver: Deliver,
        disconnect: Callable[[str], None],
        size_bytes: int = 0,
        read_ahead: ReadAhead | None = None,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id or ""
        self.client_host = client_host
        self.answered = False
        self.abandoned = False
        """The client's connection is gone: whoever waits may stop, the answer would be dropped."""
        self._deliver = deliver
        self.disconnect = disconnect
        """Close the client's connection, for the reason given: where the protocol has no other answer."""
        self.size_bytes = size_bytes
        """What the request took on the wire."""
        self.next_step: Callable[[], None] | None = None
        """Set by a handler that goes on in another turn of the loop. The connection's next request waits until a step
        sets none; of a connection that is lost meanwhile no further step is taken."""
        self.is_held = False
        self.on_release: Callable[[], None] | None = None
        """Set by the session that waits for `release`."""
        self.read_ahead = read_ahead
        """The connection's, where there is one."""

    def hold(self) -> None:
        """The connection's next request waits until `release`: this one waits for somebody, and requests are worked on
        in their order."""
        self.is_held = True

    def release(self, step: Callable[[], None]) -> None:
        """Go on with `step`, in another turn."""
        self.is_held = False
        self.next_step = step
        if self.on_release is not None:
            self.on_release()

    def build(self, name: str, /, **fields: Any) -> Any:
        """An entity nested in this call's response, in its version."""
        return codec.build(self.api_key, self.version, name, **fields)

    def answer(self, **fields: Any) -> None:
        self.answer_raw([codec.respond(self.api_key, self.version, self.correlation_id, **fields)])

    def answer_raw(self, buffers: Sequence[Buffer]) -> None:
        assert not self.answered, f"second answer to a request of API {self.api_key}"
        self.answered = True
        self._deliver(buffers)

    def answer_nothing(self) -> None:
        assert not self.answered, f"second answer to a request of API {self.api_key}"
        self.answered = True
        self._deliver(None)
