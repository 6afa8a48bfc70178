"""Which error code a version of a transaction API can hear (kafka-clients facts in docs/compatibility.md).

Versions that lack PRODUCER_FENCED hear INVALID_PRODUCER_EPOCH. Where a transaction can only abort, versions that lack
TRANSACTION_ABORTABLE hear a code on which the clients that use them abort and go on with the same producer:
INVALID_PRODUCER_ID_MAPPING, where these take it so. librdkafka does not from TxnOffsetCommit, and aiokafka, which speaks
the oldest versions alone, from neither request of offsets: there all of them do so on GROUP_AUTHORIZATION_FAILED.
TxnOffsetCommit v3, which names a generation, says ILLEGAL_GENERATION: that misleads less (librdkafka 2.16, kafka-python
3.0, aiokafka 0.14; tests/crash/test_client_power_cut.py).
"""

from __future__ import annotations

from broker.call import Call
from wire.errors import ErrorCode

ADD_PARTITIONS, ADD_OFFSETS, END, OFFSET_COMMIT = 24, 25, 26, 28

_FENCED_FROM = {ADD_PARTITIONS: 2, ADD_OFFSETS: 2, END: 2, OFFSET_COMMIT: 1 << 15}
"""TxnOffsetCommit speaks of INVALID_PRODUCER_EPOCH in every version."""
_ABORTABLE = {
    ADD_PARTITIONS: ((5, ErrorCode.transaction_abortable), (0, ErrorCode.invalid_producer_id_mapping)),
    ADD_OFFSETS: (
        (4, ErrorCode.transaction_abortable),
        (1, ErrorCode.invalid_producer_id_mapping),
        (0, ErrorCode.group_authorization_failed),
    ),
    END: ((4, ErrorCode.transaction_abortable), (0, ErrorCode.invalid_producer_id_mapping)),
    OFFSET_COMMIT: (
        (4, ErrorCode.transaction_abortable),
        (3, ErrorCode.illegal_generation),
        (0, ErrorCode.group_authorization_failed),
    ),
}
"""(first version, code): what says "abort, and go on", newest version first."""
_STATE_IS_ABORTABLE_FROM = 4
"""TxnOffsetCommit says TRANSACTION_ABORTABLE for INVALID_TXN_STATE, too, where it can."""


def code_for(call: Call, code: ErrorCode) -> ErrorCode:
    """The code to answer with in this call's API and version."""
    if code is ErrorCode.producer_fenced and call.version < _FENCED_FROM[call.api_key]:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable:
        return next(instead for first, instead in _ABORTABLE[call.api_key] if call.version >= first)
    if (
        call.api_key == OFFSET_COMMIT
        and code is ErrorCode.invalid_txn_state
        and call.version >= _STATE_IS_ABORTABLE_FROM
    ):
        return ErrorCode.transaction_abortable
    return code
