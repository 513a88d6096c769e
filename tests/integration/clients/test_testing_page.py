"""The tests of docs/testing-other-clients.md, which need pynsq, gnsq and ansq."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import OTHER_CLIENTS
from tests.test_docs import run_test_blocks

pytest.importorskip("ansq")
pytest.importorskip("gnsq")


def test_blocks_with_other_clients_pass(tmp_path: Path) -> None:
    run_test_blocks(OTHER_CLIENTS, tmp_path)
