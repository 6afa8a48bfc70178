"""ApiVersions (key 18; KIP-35, KIP-511, KIP-584): what this broker serves, and its finalized features."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from broker.call import Call
from wire import apis
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node

FEATURES = {
    # The new consumer group protocol (KIP-848).
    "group.version": 1,
    # Transactions v2 (KIP-890): clients that know it skip AddPartitionsToTxn and take new epochs from EndTxn.
    "transaction.version": 2,
}
"""The features served, each finalized at the level given."""

FEATURES_VERSION = 3
FEATURES_FROM_0_VERSION = 4
"""Older clients fail on a feature whose lowest version is 0 (KAFKA-17011)."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(node: Node, call: Call, request: Any) -> None:
    features = FEATURES if call.version >= FEATURES_VERSION else {}
    if call.version >= FEATURES_VERSION and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        call.answer(error_code=ErrorCode.invalid_request, api_keys=())
        return
    call.answer(
        api_keys=tuple(
            call.build(
                "ApiVersion", api_key=api.key, min_version=api.min_version, max_version=api.max_version
            )
            for api in apis.APIS.values()
            if api.key in node.handlers
        ),
        supported_features=tuple(
            call.build("SupportedFeatureKey", name=name, min_version=0, max_version=level)
            for name, level in features.items()
            if call.version >= FEATURES_FROM_0_VERSION
        ),
        finalized_features_epoch=0,
        finalized_features=tuple(
            call.build("FinalizedFeatureKey", name=name, min_version_level=level, max_version_level=level)
            for name, level in features.items()
        ),
    )
