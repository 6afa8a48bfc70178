"""Prints the deliberate differences for docs/compatibility.md from the list that ./run compare holds answers to."""

from __future__ import annotations

from typing import Any

from tests.compare.differences import ANY, DIFFERENCES, Difference
from wire.apis import APIS

_NAMES = {api.module: api.name for api in APIS.values()}
_ORDER = {name: number for number, name in enumerate(_NAMES)}


def differences_table() -> str:
    """Markdown, a line per API and reason."""
    lines = ["| API | field: Apache Kafka's answer / sealog's | why |", "|---|---|---|"]
    by_reason: dict[tuple[str, str], list[Difference]] = {}
    for each in sorted(DIFFERENCES, key=lambda each: _ORDER[each.api]):
        by_reason.setdefault((each.api, each.reason), []).append(each)
    for (api, reason), differences in by_reason.items():
        fields = "; ".join(map(_field, differences))
        lines.append(f"| {_NAMES[api]} | {fields} | {reason} |")
    return "\n".join(lines)


def _field(difference: Difference) -> str:
    name = f"`{difference.field}`"
    if difference.kafka is ANY and difference.sealog is ANY:
        return name
    return f"{name}: {_shown(difference.kafka)} / {_shown(difference.sealog)}"


def _shown(value: Any) -> str:
    if value is ANY:
        return "its own"
    if value is None:
        return "none"
    return str(value).strip("<>").upper() if _is_code(value) else str(value).strip("<>")


def _is_code(value: Any) -> bool:
    return isinstance(value, str) and value.replace("_", "").isalpha() and "_" in value


if __name__ == "__main__":
    print(differences_table())
