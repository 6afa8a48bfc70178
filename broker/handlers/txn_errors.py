"""Which error code a version of a transaction API can hear (kafka-clients facts in docs/compatibility.md).

Versions that lack PRODUCER_FENCED hear INVALID_PRODUCER_EPOCH. Where a transaction can only abort, versions that lack
TRANSACTION_ABORTABLE hear a code on which clients abort and go on with the same producer: INVALID_PRODUCER_ID_MAPPING,
but from TxnOffsetCommit, where that is the end of a librdkafka or kafka-python producer, ILLEGAL_GENERATION. aiokafka
takes every error of TxnOffsetCommit for the end (tests/crash/test_client_power_cut.py).
"""

from __future__ import annotations

from broker.call import Call
from wire.errors import ErrorCode

ADD_PARTITIONS, ADD_OFFSETS, END, OFFSET_COMMIT = 24, 25, 26, 28

_FENCED_FROM = {ADD_PARTITIONS: 2, ADD_OFFSETS: 2, END: 2, OFFSET_COMMIT: 1 << 15}
"""TxnOffsetCommit speaks of INVALID_PRODUCER_EPOCH in every version."""
_ABORTABLE_FROM = {ADD_PARTITIONS: 4, ADD_OFFSETS: 4, END: 4, OFFSET_COMMIT: 4}
_INSTEAD_OF_ABORTABLE = {
    ADD_PARTITIONS: ErrorCode.invalid_producer_id_mapping,
    ADD_OFFSETS: ErrorCode.invalid_producer_id_mapping,
    END: ErrorCode.invalid_producer_id_mapping,
    OFFSET_COMMIT: ErrorCode.illegal_generation,
}


def code_for(call: Call, code: ErrorCode) -> ErrorCode:
    """The code to answer with in this call's API and version."""
    if code is ErrorCode.producer_fenced and call.version < _FENCED_FROM[call.api_key]:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and call.version < _ABORTABLE_FROM[call.api_key]:
        return _INSTEAD_OF_ABORTABLE[call.api_key]
    if (
        call.api_key == OFFSET_COMMIT
        and code is ErrorCode.invalid_txn_state
        and call.version >= _ABORTABLE_FROM[OFFSET_COMMIT]
    ):
        return ErrorCode.transaction_abortable
    return code
