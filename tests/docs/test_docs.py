"""What the documents say is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from broker.config import BrokerConfig, Limits
from docs.api_table import NOTES, api_table
from docs.differences_table import differences_table
from tests.clients.features import markdown
from wire.apis import APIS

ROOT = Path(__file__).resolve().parents[2]


def test_the_api_table_is_the_one_served() -> None:
    """Mend it with: python -m docs.api_table"""
    assert api_table() in (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert set(NOTES) <= {api.name for api in APIS.values()}


def test_the_table_of_differences_is_the_one_that_answers_are_held_to() -> None:
    """Mend it with: python -m docs.differences_table"""
    assert differences_table() in (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")


def test_the_table_of_clients_names_the_versions_that_are_tested() -> None:
    """tests/clients/test_feature_table.py holds its cells to what ran. Mend it with: python -m docs.client_table"""
    assert markdown([]) in (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")


def test_the_settings_in_the_operations_guide_are_all_of_them_with_their_defaults() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert block is not None
    shown = msgspec.toml.decode(block[1])
    msgspec.convert(shown, BrokerConfig)
    defaults = msgspec.to_builtins(BrokerConfig())
    assert set(shown) | {"limits"} == set(defaults)
    assert set(shown["limits"]) == set(Limits.__struct_fields__)
    assert shown["limits"] == defaults["limits"]
    of_a_place = {"data", "listen", "advertised_listener", "cluster_secret_file"}
    assert {k: v for k, v in shown.items() if k not in of_a_place | {"limits"}} == {
        k: v for k, v in defaults.items() if k not in of_a_place | {"limits"}
    }


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_of_the_entry_script_is_named_in_its_help() -> None:
    script = (ROOT / "run").read_text(encoding="utf-8")
    words = re.findall(r"^(\w+)\)$", script, re.MULTILINE)
    assert {"demo", "test", "bench"} <= set(words)
    head = script.split("set -euo")[0]
    for word in words:
        assert f"./run {word}" in head
