"""The table of features is complete: each cell is yes or no, and each ``no`` has a reason."""

from __future__ import annotations

from tests.integration.clients.features import HAS, LACKS, TABLE


def test_every_cell_is_yes_or_no():
    head, *rows = (line.split() for line in TABLE.strip().splitlines())
    assert {len(row) for row in rows} == {1 + len(head)}
    assert {cell for row in rows for cell in row[1:]} == {"yes", "no"}


def test_each_missing_feature_has_a_reason_and_no_other():
    lacking = {client: {name for name, has in row.items() if not has} for client, row in HAS.items()}
    assert {client: names for client, names in lacking.items() if names} == {
        client: set(reasons) for client, reasons in LACKS.items()
    }
