"""Compares the tables of docs/testing.md with the tests and with ``nsqkit.testing``."""

from __future__ import annotations

import re

import pytest

from nsqkit.testing.link.faults import Faults
from nsqkit.testing.lookup_faults import LookupFaults
from nsqkit.testing.servers import NsqdServer
from tests.pages import ROOT, is_test, quoted, rows

PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
ABILITIES = list(rows(PAGE.partition("## Every ability, and the test that shows it\n")[2].partition("\n## ")[0]))
FAULTS = list(rows(PAGE.partition("## Faults\n")[2].partition("\n## ")[0]))


def test_every_ability_has_its_number_and_a_test():
    assert [int(cells[0]) for cells in ABILITIES] == list(range(1, 29))
    assert all(quoted(cells[-1]) for cells in ABILITIES)


@pytest.mark.parametrize("name", sorted({name for cells in ABILITIES for name in quoted(cells[-1])}))
def test_every_test_exists(name: str):
    assert is_test(name)


def test_table_of_faults_has_every_method():
    named = {name for cells in FAULTS if "nsq" not in cells[1] for name in quoted(cells[1])}
    assert named == public(Faults)
    of_nsqlookupd = {name for cells in FAULTS if "nsqlookupd" in cells[0] for name in quoted(cells[1])}
    assert of_nsqlookupd - {"nsqlookupd.faults"} == public(LookupFaults)


def test_every_assertion_is_named():
    assertions = {name for name in dir(NsqdServer) if name.startswith("assert_")}
    assert assertions == set(re.findall(r"`(assert_\w+)`", PAGE))


def public(cls: type) -> set[str]:
    """Return the methods that add a fault."""
    others = {"add", "clear", "remove", "refuses", "plan", "closes_on_accept"}
    return {name for name in dir(cls) if not name.startswith("_")} - others
