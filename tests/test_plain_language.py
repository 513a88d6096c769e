"""Pages and code are in plain language: none contains a phrase that docs/style.md forbids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import PAGES, ROOT, blocks_of, name

STYLE = ROOT / "docs" / "style.md"

PHRASES = next(block for block in blocks_of(STYLE) if block.section == "Language").text.splitlines()

# The style guide and the glossary quote the phrases that they forbid.
QUOTING = {STYLE, ROOT / "docs" / "glossary.md"}

# This file contains forbidden phrases as examples.
CODE = {
    f"{path.parent.name}/{path.name}": path
    for folder in ("nsqkit", "tests", "spark")
    for path in sorted((ROOT / folder).iterdir())
    if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__")
    if path != Path(__file__)
}

WORDS = "|".join(r"\s+".join(map(re.escape, phrase.split())) for phrase in PHRASES)
FORBIDDEN = re.compile(rf"\b(?:{WORDS})\b", re.IGNORECASE)

# A clause that stands for a noun, at the beginning of a sentence or a table cell. A question is allowed.
CLAUSE = re.compile(r"(?:^|[.:;|]\s+|\n\n)(?:What (?:is|was|has|comes)|Who [a-z]+s)\b[^?]*?[.|]", re.MULTILINE)


def forbidden(text: str) -> Iterator[str]:
    """Yield each forbidden phrase of a text, with the number of its line."""
    for expression in (FORBIDDEN, CLAUSE):
        for match in expression.finditer(text):
            yield f"{text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())[:60]}"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in QUOTING], ids=name)
def test_page_has_no_forbidden_phrase(page: Path):
    assert not list(forbidden(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", sorted(CODE))
def test_code_has_no_forbidden_phrase(name: str):
    path = CODE[name]
    found = [
        f"{file.relative_to(ROOT)}:{place}"
        for file in (path.rglob("*.py") if path.is_dir() else [path])
        for place in forbidden(file.read_text(encoding="utf-8"))
    ]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "They take\nnote of it.",
        "Whoever reads it.",
        "It ends. What is left is kept.",
        "| What comes next is read. |",
        "Who publishes alone waits.",
    ],
)
def test_a_forbidden_phrase_is_found(text: str):
    assert list(forbidden(text))


@pytest.mark.parametrize("text", ["The rest is kept.", "Record the end.", "A blender is not a lender."])
def test_other_texts_are_allowed(text: str):
    assert not list(forbidden(text))
