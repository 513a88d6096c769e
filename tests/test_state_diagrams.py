"""docs/states.md shows the states of every session, as the tables in the code have them."""

from __future__ import annotations

import enum

import pytest

from tests.state_diagrams import FOLDER, PAGE, draw, files, tables


class State(enum.Enum):
    FIRST = enum.auto()
    SECOND = enum.auto()
    LAST = enum.auto()


TABLE = {
    State.FIRST: {"NOP": State.FIRST, "GO": State.SECOND, "end": State.LAST},
    State.SECOND: {},
    State.LAST: {},
}


def test_page_and_pictures_are_those_of_the_tables():
    found = {path: path.read_text(encoding="utf-8") for path in [PAGE, *FOLDER.glob("*.svg")]}
    assert found == files(), "python -m tests.state_diagrams draws them again"


@pytest.mark.parametrize("module", tables())
def test_table_has_every_state_and_leads_to_states_of_the_table(module: str):
    table = tables()[module]
    states: type[enum.Enum] = type(next(iter(table)))
    assert list(table) == list(states)
    assert {target for events in table.values() for target in events.values()} <= set(table)


def test_picture_has_every_state_and_event():
    picture = draw("states", TABLE)
    assert all(f">{text}</text>" in picture for text in ("FIRST", "SECOND", "LAST", "NOP", "GO", "end"))
    assert picture.count("<path d=") == 3  # the arrowhead and two arrows
