"""The list of mutants; ``tox -e mutants`` runs worlds with each of them."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutants.mutant import ROOT, Mutant, run


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_can_be_planted(mutant):
    source = (ROOT / "nsqkit" / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1
    compile(source.replace(mutant.old, mutant.new), mutant.file, "exec")


def test_names_of_mutants_are_unique():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_mutant_that_does_no_harm_survives():
    harmless = Mutant(
        "harmless", "none", "broker/core/timers.py", "_HEAP_LENGTH_MIN: Final = 64", "_HEAP_LENGTH_MIN: Final = 65", 5
    )
    result = run(harmless)
    assert (result.is_caught, result.text) == (False, "5 worlds, 0 failed; " + result.text.split("; ")[1])


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.plan], ids=lambda mutant: mutant.name)
def test_mutant_with_a_plan_is_caught_by_it(mutant):
    assert run(mutant).is_caught


def test_mutant_whose_lines_are_gone_is_a_failure():
    result = run(Mutant("gone", "none", "broker/core/timers.py", "no such line", "", 5))
    assert (result.is_caught, result.text) == (False, "its lines occur 0 times in broker/core/timers.py")
