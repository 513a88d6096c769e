"""Reads the pages of the documentation: their fenced blocks, and their tables that name tests."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]

MIGRATING = ROOT / "docs" / "migrating"
"""Pages with the same programs for other clients and for nsqkit."""

OTHER_CLIENTS = ROOT / "docs" / "testing-other-clients.md"
"""A page with tests that need other clients."""

SPARK_TESTING = ROOT / "docs" / "spark-testing.md"
"""A page with tests of Spark jobs, which take minutes."""

EXAMPLES = ROOT / "docs" / "examples"
"""Programs that pages contain completely; tests/test_examples.py runs them."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@attrs.frozen
class Block:
    """A fenced block: its page and section there, the number of its first line, its language and its text."""

    page: Path
    section: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages that are in one of the languages."""
    return [block for page in PAGES for block in blocks_of(page) if block.language in languages]


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^( *)```(.*)\n([^`]*)^ *```$", text, re.MULTILINE):
        headings = re.findall(r"^## (.*)$", text[: match.start()], re.MULTILINE)
        yield Block(
            page,
            headings[-1] if headings else "",
            text.count("\n", 0, match.start(3)) + 1,
            match[2],
            textwrap.dedent(match[3]),
        )


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row of each table, without the heads."""
    lines = text.splitlines()
    for line, next_line in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("| ") and not next_line.startswith("|--"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def quoted(text: str) -> list[str]:
    """Return the texts between backticks."""
    return re.findall(r"`([^`]+)`", text)


def is_test(name: str) -> bool:
    """Return whether a test exists: a file under tests/, or ``file::name`` with a function or class in it."""
    file, _, inside = name.removeprefix("tests/").partition("::")
    path = ROOT / "tests" / file
    return path.is_file() and (not inside or inside in _names_in(path))


@functools.cache
def _names_in(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return {name for name in names if name.lower().startswith("test")}
