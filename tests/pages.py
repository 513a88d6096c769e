"""The pages of the documentation, and the fenced blocks on them, for the tests that run what the pages show.

The rule it guards: a block is looked at in one way, whoever runs it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]

MIGRATING = ROOT / "docs" / "migrating"
"""Pages with programs beside those of other clients."""


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
