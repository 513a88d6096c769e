"""The table of who has what is whole: no cell without a yes or no, no ``no`` without a reason."""

from __future__ import annotations

from tests.integration.clients.features import HAS, LACKS, TABLE


def test_every_cell_says_yes_or_no():
    head, *rows = (line.split() for line in TABLE.strip().splitlines())
    assert {len(row) for row in rows} == {1 + len(head)}
    assert {cell for row in rows for cell in row[1:]} == {"yes", "no"}


def test_what_a_client_lacks_has_a_reason_and_nothing_else_has_one():
    lacking = {client: {name for name, has in row.items() if not has} for client, row in HAS.items()}
    assert {client: names for client, names in lacking.items() if names} == {
        client: set(reasons) for client, reasons in LACKS.items()
    }
