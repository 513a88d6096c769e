"""Holds the tables of features in docs/clients.md against the tests and the clients.

The rule it guards: no claim without a test. Each feature has a row of its number, and a row names what shows it, or
says that it is not built.
"""

from __future__ import annotations

import inspect
import re

import attrs
import pytest

import nsqkit
from nsqkit import BrokerError, Consumer, ConsumerOptions, Message, Producer, ProducerOptions
from nsqkit.consumer.handler_options import HandlerOptions
from nsqkit.consumer.stats import ConnectionStats
from tests.pages import ROOT, is_test, quoted, rows

FEATURE_COUNT = 117

HEADING = "## Every feature, and the test that shows it\n"
SECTION = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8").partition(HEADING)[2]
ROWS = list(rows(SECTION))
TESTS = sorted({name for cells in ROWS for name in quoted(cells[-1])})

# Whatever a row may name as the way to have a feature.
KNOWN = {
    *dir(nsqkit),
    *(name for cls in (BrokerError, Consumer, Message, Producer) for name in dir(cls)),
    *(name for client in (Consumer, Producer) for name in inspect.signature(client).parameters),
    *(
        field.name
        for cls in (ConsumerOptions, ProducerOptions, HandlerOptions, ConnectionStats)
        for field in attrs.fields(cls)
    ),
}


def test_every_number_is_there_once():
    numbers = [int(cells[0]) for cells in ROWS if cells[0].isdigit()]
    assert numbers == list(range(1, FEATURE_COUNT + 1))


def test_every_row_says_what_shows_it_or_that_it_is_not_built():
    unshown = [cells for cells in ROWS if not quoted(cells[-1]) and not cells[2].startswith("not built")]
    assert not unshown


@pytest.mark.parametrize("name", TESTS)
def test_every_test_exists(name: str):
    assert is_test(name)


def test_every_option_and_method_exists():
    ways = " ".join(cells[2] for cells in ROWS if cells[0].isdigit())
    names = re.findall(r"`([a-z_]+)(?:=[^`]*)?`", ways)
    assert len(names) > FEATURE_COUNT // 2
    assert set(names) <= KNOWN
