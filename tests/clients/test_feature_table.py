"""docs/compatibility.md says of clients and features what this run saw. Runs last."""

import pytest

from tests.clients.features import FEATURES, Table, client_names, declared, documented, markdown
from tests.clients.fixtures import Broker
from tests.support.broker_process import CHECKOUT

DOCUMENT = CHECKOUT / "docs" / "compatibility.md"
SHOWN = CHECKOUT / ".cache" / "clients" / "features.md"
"""What `python -m docs.client_table` puts into the document."""


def test_the_documents_say_what_ran(feature_table: tuple[Table, bool], broker: Broker) -> None:
    """Mend it with: python -m docs.client_table"""
    table, whole = feature_table
    if not whole or not broker.is_sealog:
        pytest.skip("only a run of all client scenarios on sealog fills the table")
    declared(table)
    names = client_names()
    if all(map(table.ran, names)):
        SHOWN.parent.mkdir(parents=True, exist_ok=True)
        SHOWN.write_text(markdown(table.rows(names)))
    said = documented(DOCUMENT.read_text(encoding="utf-8"))
    wrong = {
        (name, feature): f"ran: {table.cell(name, feature)!r}, documented: {said.get((name, feature))!r}"
        for name in names
        if table.ran(name)
        for feature in FEATURES
        if table.cell(name, feature) != said.get((name, feature))
    }
    assert wrong == {}


def test_what_a_cell_says() -> None:
    table = Table()
    assert table.cell("a", "fencing") == ""
    table.note("a", "fencing", "lacks")
    assert table.cell("a", "fencing") == "lacks it"
    table.note("a", "fencing", "passed")
    assert table.cell("a", "fencing") == "in part"
    table.note("a", "fencing", "failed")
    assert table.cell("a", "fencing") == "FAILED"
    assert table.ran("a")
    table.note("a", "consumer groups", "absent")
    assert not table.ran("a")
