"""Draws the states of the sessions from their tables: ``python -m tests.state_diagrams`` writes docs/states.md.

A module with a session has a table ``TRANSITIONS``: for each state, the next state after each command or event. The
states are drawn in the order of the table, from top to bottom. An event that leads back to its own state is written in
the box. Arrows to the next state are straight; arrows past a state are curved, those for the event ``end`` on the left.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

from tests.pages import ROOT

Table: TypeAlias = Mapping[Any, Mapping[str, Enum]]

PAGE = ROOT / "docs" / "states.md"
FOLDER = ROOT / "docs" / "states"

TEXT = """# Session states

A session is the protocol state of one connection. Its module has a table `TRANSITIONS`: for each state, the next state
after each command or event. The session changes its state only by that table, and this page is drawn from it:
`python -m tests.state_diagrams` draws it again, and a test compares it with the tables.

An event inside a box does not change the state. `end` is the end of the connection for any reason.
"""

WIDTH, HEIGHT, GAP = 260, 46, 44
"""Of a box, and the distance between two boxes, in pixels."""

LEFT, RIGHT = 170, 220
"""Space for the curves beside the boxes, in pixels."""

STROKE = 'fill="none" stroke="#333" marker-end="url(#arrow)"'

HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
 font-family="sans-serif" font-size="13" text-anchor="middle">
<title>{title}</title>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#333"/></marker></defs>
<rect width="100%" height="100%" fill="#fff"/>
"""


def tables() -> dict[str, Table]:
    """Return the table of each module that has one, by the module's name."""
    found = {}
    for path in sorted((ROOT / "nsqkit").rglob("*.py")):
        if "\nTRANSITIONS" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name] = importlib.import_module(name).TRANSITIONS
    return found


def draw(title: str, table: Table) -> str:
    """Return an SVG picture of a table."""
    states = list(table)
    height = len(states) * (HEIGHT + GAP) - GAP + 20
    lines = [HEAD.format(width=LEFT + WIDTH + RIGHT, height=height, title=escape(title))]
    for number, state in enumerate(states):
        lines += _box(number, state, table[state])
    for number, state in enumerate(states):
        curves = 0
        for target, events in _grouped(table[state]).items():
            index = states.index(target)
            if index == number + 1:
                lines.append(_straight(number, events))
            elif index != number:
                lines.append(_curve(number, index, events, curves))
                curves += events != ["end"]
    return "\n".join([*lines, "</svg>", ""])


def _grouped(events: Mapping[str, Enum]) -> dict[Enum, list[str]]:
    targets: dict[Enum, list[str]] = {}
    for event, target in events.items():
        targets.setdefault(target, []).append(event)
    return targets


def _top(number: int) -> int:
    return 10 + number * (HEIGHT + GAP)


def _box(number: int, state: Enum, events: Mapping[str, Enum]) -> Iterator[str]:
    top, middle = _top(number), LEFT + WIDTH // 2
    own = [event for event, target in events.items() if target is state]
    yield f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#eef3fa" stroke="#333"/>'
    yield f'<text x="{middle}" y="{top + (19 if own else 28)}" font-weight="bold">{state.name}</text>'
    if own:
        yield f'<text x="{middle}" y="{top + 36}" font-size="10">{escape(", ".join(own))}</text>'


def _straight(source: int, events: list[str]) -> str:
    x, start, end = LEFT + WIDTH // 2, _top(source) + HEIGHT, _top(source + 1)
    return (
        f'<path d="M{x},{start} L{x},{end}" {STROKE}/>\n'
        f'<text x="{x + 8}" y="{(start + end) // 2 + 4}" text-anchor="start">{escape(", ".join(events))}</text>'
    )


def _curve(source: int, target: int, events: list[str], number: int) -> str:
    """Draw a curve beside the boxes; ``number`` counts those of the same source, which begin below each other."""
    side = -1 if events == ["end"] else 1
    x = LEFT if side < 0 else LEFT + WIDTH
    start = _top(source) + (30 if side < 0 else 18 + 13 * number)
    end = _top(target) + 8
    reach = x + side * (60 + 20 * abs(target - source))
    anchor = "end" if side < 0 else "start"
    return (
        f'<path d="M{x},{start} C{reach},{start} {reach},{end} {x},{end}" {STROKE}/>\n'
        f'<text x="{x + side * 6}" y="{start - 3}" font-size="11" text-anchor="{anchor}" fill="#555">'
        f"{escape(', '.join(events))}</text>"
    )


def files() -> dict[Path, str]:
    """Return the page and its pictures: the content of each file."""
    found = {PAGE: TEXT}
    for module, table in tables().items():
        path = module.replace(".", "/") + ".py"
        picture = FOLDER / f"{module.removeprefix('nsqkit.')}.svg"
        states = " ".join(state.name for state in table)
        found[PAGE] += f"\n## `{path}`\n\n![{states}]({FOLDER.name}/{picture.name})\n"
        found[picture] = draw(module, table)
    return found


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.svg"):
        path.unlink()
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
