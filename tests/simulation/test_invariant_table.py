"""The table of invariants in docs/simulation.md, and the mutants that break them."""

from __future__ import annotations

from tests.simulation import invariant_table
from tests.simulation.broken import INVARIANTS
from tests.simulation.mutants import MUTANTS

WITHOUT_MUTANT: set[int] = set()  # of which none has been found yet


def test_page_has_the_table_of_the_code():
    page = invariant_table.PAGE.read_text(encoding="utf-8")
    assert invariant_table.with_table(page) == page, "python -m tests.simulation.invariant_table writes the table"


def test_each_invariant_is_checked_somewhere():
    checked = invariant_table.places()
    assert checked.keys() == INVARIANTS.keys(), "a check has a number without a sentence"
    assert [number for number, names in checked.items() if not names] == []


def test_each_invariant_has_a_mutant_that_breaks_it():
    broken = invariant_table.mutants()
    assert {number for number, names in broken.items() if not names} == WITHOUT_MUTANT


def test_mutants_name_invariants_that_exist():
    assert {number for mutant in MUTANTS for number in mutant.breaks} <= INVARIANTS.keys()
