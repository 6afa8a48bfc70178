"""Small blocking clients for what Kafka's own cannot say.

Group transactions (design T10), layouts (section 5) and clusters (section 7).

One connection, one call at a time.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from wire import cluster, layouts, private_api
from wire import group_transactions as messages
from wire.apis import ApiKey
from wire.errors import ErrorCode, KafkaError


class PrivateClient:
    """Talks to the broker at HOST:PORT. Every call raises KafkaError for a refusal, OSError for a broken connection."""

    api_key: ClassVar[int]

    def __init__(self, bootstrap_server: str, *, timeout_s: float = 60.0, client_id: str = "sealog") -> None:
        host, _, port = bootstrap_server.rpartition(":")
        self._socket = socket.create_connection(
            (host.removeprefix("[").removesuffix("]"), int(port)), timeout_s
        )
        self._client_id = client_id
        self._correlation_id = 0

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: private_api.Request) -> Any:
        response = self._exchange(request)
        if response.error:
            raise KafkaError(response.error_code, response.message)
        return response

    def _exchange(self, request: private_api.Request) -> Any:
        self._correlation_id += 1
        self._socket.sendall(
            private_api.encode_request(self.api_key, self._correlation_id, self._client_id, request)
        )
        size = int.from_bytes(self._receive(4), "big")
        correlation_id, response = private_api.decode_response(self.api_key, self._receive(size))
        if correlation_id != self._correlation_id:
            raise OSError(f"answer {correlation_id} to request {self._correlation_id}")
        return response

    def _receive(self, size_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < size_bytes:
            part = self._socket.recv(size_bytes - len(received))
            if not part:
                raise ConnectionError("the broker closed the connection")
            received += part
        return bytes(received)


class GroupTransactionClient(PrivateClient):
    """Enlists members and ends groups. Members write with any Kafka client."""

    api_key = ApiKey.SEALOG_GROUP_TRANSACTION

    def enlist(
        self,
        sink: str,
        batch: int,
        attempt: str,
        member: messages.Member,
        *,
        timeout_ms: int,
        generation: int = 0,
    ) -> messages.Response:
        """Make the member's transaction part of the attempt, before or after its first write.

        `repeated` in the answer: the batch is done, there is nothing to write.
        """
        return self._group(
            messages.Enlist(
                sink=sink,
                batch=batch,
                attempt=attempt,
                member=member,
                timeout_ms=timeout_ms,
                generation=generation,
            )
        )

    def commit(
        self,
        sink: str,
        batch: int,
        attempt: str,
        members: Sequence[messages.Member],
        offsets: Sequence[messages.Offset] = (),
    ) -> messages.Response:
        """Commit exactly these members (all have voted) and discard every other, in one write."""
        return self._group(
            messages.Commit(
                sink=sink, batch=batch, attempt=attempt, members=tuple(members), offsets=tuple(offsets)
            )
        )

    def abort(self, sink: str, batch: int, attempt: str) -> messages.Response:
        """Discard the attempt. Of a batch that is done: its outcome, and nothing changes."""
        return self._group(messages.Abort(sink=sink, batch=batch, attempt=attempt))

    def extend(self, sink: str, batch: int, attempt: str, *, timeout_ms: int) -> messages.Response:
        """Give an undecided attempt this much time from now on."""
        return self._group(messages.Extend(sink=sink, batch=batch, attempt=attempt, timeout_ms=timeout_ms))

    def describe(self, sink: str) -> messages.Response:
        """The sink's last committed batch, and its batches that are not decided."""
        return self._group(messages.Describe(sink=sink))

    def _group(self, request: messages.Request) -> messages.Response:
        response: messages.Response = self._ask(request)
        return response


class LayoutClient(PrivateClient):
    """Sees and changes the ranges of topics."""

    api_key = ApiKey.SEALOG_LAYOUT

    def describe(self, topic: str) -> layouts.Response:
        return self._layout(layouts.Describe(topic=topic))

    def split(self, topic: str, at: Sequence[int]) -> layouts.Response:
        """Let a range begin at each of these partitions."""
        return self._layout(layouts.Split(topic=topic, at=tuple(at)))

    def merge(self, topic: str, first: int, last: int) -> layouts.Response:
        """One range for partitions `first`..`last`, which must be whole ranges."""
        return self._layout(layouts.Merge(topic=topic, first=first, last=last))

    def seal(self, topic: str, partition: int) -> layouts.Response:
        """Seal the active segment of the range of this partition and go on in a new one."""
        return self._layout(layouts.Seal(topic=topic, partition=partition))

    def _layout(self, request: layouts.Request) -> layouts.Response:
        response: layouts.Response = self._ask(request)
        return response


class ClusterClient(PrivateClient):
    """Sees and changes the nodes of a cluster. Changes go to the node that takes them, wherever the client is."""

    api_key = ApiKey.SEALOG_CLUSTER

    def status(self) -> cluster.Response:
        """As this node sees it."""
        response: cluster.Response = self._ask(cluster.Status())
        return response

    def add(self, node: int, peer: str, rack: str = "", *, dry_run: bool = False) -> cluster.Response:
        """Let a node come in when it starts; `peer` is where the others reach it, HOST:PORT."""
        return self._change(cluster.Add(node=node, peer=peer, rack=rack, dry_run=dry_run))

    def drain(self, node: int, *, undo: bool = False, dry_run: bool = False) -> cluster.Response:
        """Move leaders, and those replicas that another node can take, off the node."""
        return self._change(cluster.Drain(node=node, undo=undo, dry_run=dry_run))

    def remove(self, node: int, *, dry_run: bool = False) -> cluster.Response:
        """Take the node out for good."""
        return self._change(cluster.Remove(node=node, dry_run=dry_run))

    def _change(self, request: cluster.Request) -> cluster.Response:
        response: cluster.Response = self._exchange(request)
        if response.error == ErrorCode.not_controller and response.redirect:
            # Once: a node that was elected meanwhile is not chased.
            with ClusterClient(response.redirect, client_id=self._client_id) as there:
                there_response: cluster.Response = there._ask(request)
                return there_response
        if response.error:
            raise KafkaError(response.error_code, response.message)
        return response
