from __future__ import annotations

import logging

import pytest

from nsqkit.errors import RequestFailed
from nsqkit.wire.commands import encode_publish
from tests.pairs import DrivenBroker


@pytest.fixture(autouse=True)
def _all_levels(caplog):
    caplog.set_level(logging.DEBUG, "nsqkit.broker")


def test_each_command_is_logged_while_enabled(caplog):
    driven = DrivenBroker()
    client = driven.client()
    client.exchange(encode_publish(b"t", b"x"))
    assert not caplog.messages
    driven.broker.log_commands(True)
    client.exchange(
        encode_publish(b"t", b"x") * 2, b"MPUB t\n\0\0\0\x0d\0\0\0\1\0\0\0\5hello", b"SUB t c\nRDY 5\nNOP\n"
    )
    client.exchange(b"FIN 0123456789abcdef\nFIN 0123456789abcdeg\n")
    lines = ["PUB t", "PUB t", "MPUB t", "SUB t c", "RDY 5", "NOP"]
    lines += ["FIN 0123456789abcdef", "FIN 0123456789abcdeg"]
    assert caplog.messages == [f"PROTOCOL(V2): [10.0.0.1:1] [{line}]" for line in lines]
    assert {record.levelname for record in caplog.records} == {"DEBUG"}
    driven.broker.log_commands(False)
    client.exchange(b"NOP\n")
    assert len(caplog.messages) == len(lines)


def test_refused_or_suspended_command_is_logged_once(caplog):
    driven = DrivenBroker(auth_http_addresses=("127.0.0.1:1",))
    driven.broker.log_commands(True)
    client = driven.client()
    client.exchange(b"AUTH\n\0\0\0\1s")
    assert not caplog.messages
    client.session.authorize(RequestFailed("down"))
    client.answers()
    assert caplog.messages == ["PROTOCOL(V2): [10.0.0.1:1] [AUTH]"]
    assert client.session.ended


def test_logged_commands_are_processed():
    driven = DrivenBroker()
    driven.broker.log_commands(True)
    client = driven.client()
    assert client.exchange(encode_publish(b"t", b"x"), b"SUB t c\n") == [b"OK", b"OK"]
    assert driven.topic().message_count == 1
