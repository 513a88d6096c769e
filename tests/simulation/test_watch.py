"""The record of what worlds reach."""

from __future__ import annotations

import pytest

from tests.simulation import table, watch
from tests.simulation.draw import draw
from tests.simulation.sometimes import SOMETIMES, never
from tests.simulation.world import trace_hash

COMMON = (
    "fresh messages at the end of a connection",
    "PUB to a topic without channels",
    "FIN of a message that timed out",
    "a third delivery",
    "two consumers hold messages of a channel",
    "a refused publish",
)


@pytest.fixture(scope="module", name="watched")
def watched_worlds():
    return table.watch_worlds(range(100))


def test_some_worlds_reach_common_states(watched):
    assert [name for name in COMMON if not watched.reached[name]] == []


def test_some_worlds_reach_most_pairs(watched):
    wanted = {each[:2] for each in watch.possible()}
    found = {each[:2] for each in watched.triples}
    assert len(wanted & found) > 0.7 * len(wanted)


def test_combinations_that_are_called_impossible_do_not_occur(watched):
    assert [each for each in watched.triples if watch.why_impossible(*each[:2])] == []


def test_table_names_states_that_were_not_reached():
    empty = watch.Watch()
    assert len(never(empty.reached)) == len(SOMETIMES)
    assert f"sometimes: 0 of {len(SOMETIMES)}" in empty.table()


def test_watch_changes_no_world(watched):
    assert trace_hash(draw(7)) == trace_hash(draw(7))
