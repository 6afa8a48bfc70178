"""Prints the table of clients and features for docs/compatibility.md, as the last whole run of tests/clients saw it."""

from __future__ import annotations

from pathlib import Path

SHOWN = Path(__file__).resolve().parents[1] / ".cache" / "clients" / "features.md"
"""Written by tests/clients/test_feature_table.py."""


def client_table() -> str:
    """Markdown, a line per feature. Raises SystemExit where no run left one."""
    if not SHOWN.exists():
        raise SystemExit("no run of the client tests was whole yet: ./run test tests/clients")
    return SHOWN.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(client_table())
