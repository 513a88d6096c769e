"""Compares docs/operating.md with the programs: its configuration files have every key with its default.

So a configuration that is copied from the page starts the program.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from typing import Any

import attrs
import pytest

from nsqkit.broker.core.options import OPTIONS, BrokerOptions
from nsqkit.broker.core.session.auth import decode_auth_state
from nsqkit.lookupd.options import OPTIONS as LOOKUPD_OPTIONS
from nsqkit.lookupd.options import LookupdOptions
from nsqkit.options.flags import parse_document, parse_flags, unknown_keys
from nsqkit.program.command import COMMAND_FLAGS
from nsqkit.program.service import IGNORED_SIGNALS, STOP_SIGNALS
from tests.pages import ROOT, Block, blocks_of

PAGE = ROOT / "docs" / "operating.md"
BLOCKS = list(blocks_of(PAGE))

# Keys that name a machine or a directory, whose defaults differ between machines.
NAMES = {"node_id", "broadcast_address", "lookupd_tcp_addresses", "data_path"}


def of(language: str, section: str) -> list[Block]:
    return [block for block in BLOCKS if (block.language, block.section) == (language, section)]


@pytest.mark.parametrize(
    ("number", "make", "options"), [(0, BrokerOptions, OPTIONS), (1, LookupdOptions, LOOKUPD_OPTIONS)]
)
def test_a_configuration_file_has_every_key_with_its_default(number: int, make: Any, options: Any):
    document = tomllib.loads(of("toml", "Configure")[number].text)
    assert list(document) == [option.config_name for option in options.values()]
    configured, defaults = make(**parse_document(document, options)), make()
    others = {field.name for field in attrs.fields(make)} - NAMES
    assert {name: getattr(configured, name) for name in others} == {name: getattr(defaults, name) for name in others}


def test_configuration_of_tls_and_auth_is_valid():
    (block,) = of("toml", "TLS and AUTH")
    document = tomllib.loads(block.text)
    assert not unknown_keys(document, OPTIONS)
    options = BrokerOptions(**parse_document(document, OPTIONS))
    assert (options.tls_client_auth_policy, options.tls_demanded) == ("require-verify", "tcp-https")


def test_example_answer_of_an_auth_server_is_valid():
    (block,) = of("json", "TLS and AUTH")
    state = decode_auth_state(block.text.encode(), 0)
    assert state.is_allowed(b"orders", b"billing")
    assert state.is_allowed(b"orders", b"x#ephemeral")
    assert state.is_allowed(b"invoices.new", b"")
    assert not state.is_allowed(b"orders", b"")
    assert not state.is_allowed(b"orders", b"other")
    assert not state.is_allowed(b"invoices.new", b"billing")


def test_flags_of_unit_and_container_are_valid():
    unit, container = of("text", "Run as a service")
    command = re.search(r"(?m)^ExecStart=(.*)$", unit.text)
    entry = re.search(r"(?m)^ENTRYPOINT (.*)$", container.text)
    assert command
    assert entry
    for words in (shlex.split(command[1]), json.loads(entry[1])):
        assert words[1:4] == ["-m", "nsqkit", "nsqd"]
        assert parse_flags(words[4:], {**COMMAND_FLAGS, **OPTIONS})


def test_table_of_signals_is_complete():
    text = PAGE.read_text(encoding="utf-8")
    assert f"| {', '.join(each.name for each in reversed(STOP_SIGNALS))} | stops" in text
    assert f"| {', '.join(each.name for each in IGNORED_SIGNALS)}, SIGPIPE | nothing |" in text
