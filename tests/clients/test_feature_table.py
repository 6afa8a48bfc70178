"""The table of clients and features: what a cell says, and that the document is held to it."""

from __future__ import annotations

from tests.clients.features import FEATURES, Table, client_names, disagreements, markdown


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


def test_a_document_that_says_otherwise_is_told() -> None:
    table = Table()
    for name in client_names():
        for feature in FEATURES:
            table.note(name, feature, "passed")
    document = markdown(table.rows(client_names()))
    assert list(disagreements(table, document)) == []
    table.note("sarama", "fencing", "failed")
    assert list(disagreements(table, document)) == ["sarama, fencing: ran 'FAILED', documented 'yes'"]
