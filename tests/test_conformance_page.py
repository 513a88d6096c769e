"""Every name on docs/conformance.md exists: tests, areas of the conformance cases, and flags.

The last cell of a row names what shows its claim: a file under tests/, with or without a test in it, or an area of
the conformance cases. The cases are kept outside this repository. If the variable NSQ_CONFORMANCE names their
directory, the page must name every area.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import pytest

from nsqkit.broker.core.options import OPTIONS
from tests.pages import ROOT, is_test, quoted, rows

# Without its fenced blocks, which tests/test_docs.py reads.
PAGE = re.sub(r"```.*?```", "", (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8"), flags=re.DOTALL)
CASES = os.environ.get("NSQ_CONFORMANCE")

AREA = re.compile(r"[a-z]+(-[a-z]+)*")

ROWS = list(rows(PAGE))
NAMES = sorted({name for cells in ROWS for name in quoted(cells[-1])})
TESTS = sorted({name for name in quoted(PAGE) if ".py" in name})
AREAS = sorted(set(NAMES) - set(TESTS))


@functools.cache
def areas() -> set[str]:
    assert CASES is not None
    texts = [path.read_text(encoding="utf-8") for path in Path(CASES, "cases").glob("*.py")]
    return set(re.findall(r'@(?:case|table)\(\s*"([^/"]+)/', "".join(texts)))


def test_every_row_names_its_test():
    assert len(ROWS) > 30
    assert [cells[0] for cells in ROWS if not quoted(cells[-1])] == []


@pytest.mark.parametrize("name", TESTS)
def test_every_test_exists(name: str):
    assert is_test(name)


def test_every_other_name_is_an_area():
    assert not [name for name in AREAS if not AREA.fullmatch(name)]


@pytest.mark.skipif(CASES is None, reason="NSQ_CONFORMANCE does not name the directory of the cases")
def test_page_names_exactly_the_areas_of_the_cases():
    assert set(AREAS) == areas()


def test_every_flag_exists():
    known = {f"--{option.flag}" for option in OPTIONS.values()} | {"--version"}
    assert {flag.partition("=")[0] for flag in re.findall(r"`(--[a-z-]+)", PAGE)} <= known
