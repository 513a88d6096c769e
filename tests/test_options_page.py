"""The tables of docs/clients.md have every option with its default."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest

from nsqkit import ConsumerOptions, ProducerOptions, __version__
from nsqkit.client.options import ConnectionOptions
from nsqkit.consumer.handler_options import HandlerOptions
from nsqkit.lookup.options import LookupOptions
from tests.pages import ROOT
from tests.wrong_options import is_seconds

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")

# A class of options -> its bases, whose options have their own tables.
TABLES: dict[type[Any], tuple[type[Any], ...]] = {
    ConnectionOptions: (),
    ProducerOptions: (ConnectionOptions,),
    ConsumerOptions: (ConnectionOptions, LookupOptions),
    LookupOptions: (),
    HandlerOptions: (),
}


def shown(field: attrs.Attribute[Any]) -> str:
    """Return a default as it is written in the table."""
    value = field.default
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return "–"
    if callable(value):
        return f"`{value.__name__}`"
    if isinstance(value, str):
        return f"`{value.replace(__version__, '…')}`"
    return f"{value:g} s" if is_seconds(field) else f"{value:,}"


@pytest.mark.parametrize("options", TABLES, ids=lambda options: options.__name__)
def test_a_table_has_the_options_and_their_defaults(options: type[Any]):
    inherited = {field.name for base in TABLES[options] for field in attrs.fields(base)}
    expected = [(field.name, shown(field)) for field in attrs.fields(options) if field.name not in inherited]
    table = PAGE.partition(f"(`{options.__name__}`):\n\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE) == expected
