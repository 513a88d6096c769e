"""Compares the tables of features in docs/clients.md with the tests and the clients.

Each feature has a row with its number. The row names the test that shows it, or says that it is not built.
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

# The names that a row may use in its third column.
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


def test_every_number_occurs_once():
    numbers = [int(cells[0]) for cells in ROWS if cells[0].isdigit()]
    assert numbers == list(range(1, FEATURE_COUNT + 1))


def test_every_row_names_a_test_or_is_not_built():
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
