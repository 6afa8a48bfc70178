"""The broker, run so that AddOffsetsToTxn seems to have been answered before a power cut: TxnOffsetCommit is then the
first that hears of it. Clients always send the two in a row, so no test could cut the power between them."""

from typing import Any

from broker.cli import main
from broker.handlers import HANDLERS
from wire.apis import ApiKey
from wire.errors import ErrorCode

_handle = HANDLERS[ApiKey.ADD_OFFSETS_TO_TXN]


def _added(node: Any, call: Any, request: Any) -> None:
    held = node.coordinator.get(request.transactional_id)
    if held is not None and node.coordinator._ids.may_have_lost(held):
        call.answer(error_code=ErrorCode.none)
    else:
        _handle(node, call, request)


if __name__ == "__main__":
    HANDLERS[ApiKey.ADD_OFFSETS_TO_TXN] = _added
    main(prog_name="sealog-offsets-added")
