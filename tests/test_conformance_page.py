"""Holds docs/conformance.md against the tests: whatever it says is shown somewhere is there.

The rule it guards: no claim without a test. A row's last cell names what shows it; a name is a file under tests/, with
or without a function of it, or an area of the conformance cases. Those are kept outside this repository: where the
variable NSQ_CONFORMANCE names their directory, the page has to name each area that there is.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqkit.broker.core.options import OPTIONS

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
CASES = os.environ.get("NSQ_CONFORMANCE")

AREA = re.compile(r"[a-z]+(-[a-z]+)*")


def rows() -> Iterator[list[str]]:
    """Yield the cells of each row of each table, but for the heads."""
    for line in PAGE.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[-1] != "shown by":
                yield cells


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@functools.cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@functools.cache
def areas() -> set[str]:
    assert CASES is not None
    texts = [path.read_text(encoding="utf-8") for path in Path(CASES, "cases").glob("*.py")]
    return set(re.findall(r'@(?:case|table)\(\s*"([^/"]+)/', "".join(texts)))


NAMES = sorted({name for cells in rows() for name in quoted(cells[-1])})
TESTS = sorted({name for name in quoted(PAGE) if ".py" in name})
AREAS = sorted(set(NAMES) - set(TESTS))


def test_every_row_says_what_shows_it():
    assert len(list(rows())) > 30
    unshown = [cells[0] for cells in rows() if not quoted(cells[-1])]
    assert not unshown


@pytest.mark.parametrize("name", TESTS)
def test_every_test_exists(name: str):
    file, _, function = name.removeprefix("tests/").partition("::")
    path = ROOT / "tests" / file
    assert path.is_file()
    assert not function or function in functions(path)


def test_every_other_name_is_an_area():
    assert not [name for name in AREAS if not AREA.fullmatch(name)]


@pytest.mark.skipif(CASES is None, reason="NSQ_CONFORMANCE does not say where the cases are")
def test_every_area_of_the_cases_is_named_and_no_other():
    assert set(AREAS) == areas()


def test_every_flag_exists():
    known = {f"--{option.flag}" for option in OPTIONS.values()} | {"--version"}
    assert {flag.partition("=")[0] for flag in re.findall(r"`(--[a-z-]+)", PAGE)} <= known
