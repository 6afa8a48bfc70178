"""Regular expressions that come from clients.

Guarantee: matching takes time linear in the text, whatever the pattern (RE2), and a compiled pattern is bounded in
memory.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from wire.errors import ErrorCode, KafkaError

MAX_PATTERN_CHARS: Final = 4_096

_MEMORY_BYTES: Final = 1 << 20
_KEPT: Final = 64


@lru_cache(maxsize=_KEPT)
def compile_pattern(pattern: str) -> Any:
    """A compiled pattern with `fullmatch(text)`.

    Raises:
        KafkaError: INVALID_REGULAR_EXPRESSION.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"a pattern of {len(pattern)} characters; the limit is {MAX_PATTERN_CHARS}",
        )
    # Its library is loaded when the first pattern comes: most brokers never see one.
    re2: Any = import_module("re2")
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise KafkaError(
            ErrorCode.invalid_regular_expression, f"pattern {pattern!r} is not valid: {text}"
        ) from None
