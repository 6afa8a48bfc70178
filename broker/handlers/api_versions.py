"""ApiVersions (key 18; KIP-35, KIP-511, KIP-584): what this broker serves, and its finalized features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from wire import apis

if TYPE_CHECKING:
    from broker.node import Node

TRANSACTION_VERSION = 2
"""Transactions v2 (KIP-890): clients that know it skip AddPartitionsToTxn and take new epochs from EndTxn."""


def handle(node: Node, call: Call, request: Any) -> None:
    call.answer(
        api_keys=tuple(
            call.build(
                "ApiVersion", api_key=api.key, min_version=api.min_version, max_version=api.max_version
            )
            for api in apis.APIS.values()
        ),
        supported_features=(
            call.build(
                "SupportedFeatureKey",
                name="transaction.version",
                min_version=0,
                max_version=TRANSACTION_VERSION,
            ),
        )
        if call.version >= 3
        else (),
        finalized_features_epoch=0,
        finalized_features=(
            call.build(
                "FinalizedFeatureKey",
                name="transaction.version",
                min_version_level=TRANSACTION_VERSION,
                max_version_level=TRANSACTION_VERSION,
            ),
        )
        if call.version >= 3
        else (),
    )
