from __future__ import annotations

from pathlib import Path

import pytest

from nsqkit.errors import OptionError
from nsqkit.testing.link.items import Connection, Direction
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.script import Script
from nsqkit.testing.script_replay import replay
from nsqkit.wire.commands import MAGIC_V2, NOP
from tests.testing.link.traffic import Conversation, whole_conversation


def recorded(journal: Journal, client: str, direction: Direction) -> bytes:
    return b"".join(
        item.data
        for record in journal.records
        for item in record.items
        if record.direction is direction and record.connection.client_id == client and item.name != "HEARTBEAT"
    )


@pytest.mark.parametrize("has_file", [False, True], ids=["journal", "file"])
def test_recorded_commands_get_the_recorded_frames(tmp_path: Path, has_file: bool) -> None:
    journal = whole_conversation().journal
    journal.save(tmp_path / "journal.jsonl")
    scripts = replay(tmp_path / "journal.jsonl" if has_file else journal)
    assert len(scripts) == 2
    for steps, client in zip(scripts, ["", "worker"], strict=True):
        script = Script(steps, Connection("client:1"), Journal(), 1)
        script.receive_data(recorded(journal, client, Direction.TO_BROKER), 1)
        assert script.failure == ""
        assert script.is_complete
        assert script.data_to_send() == recorded(journal, client, Direction.TO_CLIENT)


def test_what_is_compared() -> None:
    _, steps = replay(whole_conversation().journal)
    assert [str(step) for step in steps] == [
        "expect('IDENTIFY')",
        "OK as recorded",
        "expect('SUB', topic='orders', channel='billing')",
        "OK as recorded",
        "expect('RDY', ready_count=1)",
        "MESSAGE as recorded",
        "expect('FIN', message_id='0000000000000001')",
        "MESSAGE as recorded",
        "expect('REQ', message_id='0000000000000002', delay_ms=1500)",
        "MESSAGE as recorded",
        "expect('TOUCH', message_id='0000000000000002')",
        "expect('FIN', message_id='0000000000000002')",
    ]


def test_another_body_is_named() -> None:
    steps, _ = replay(whole_conversation().journal)
    talk = Conversation()
    script = Script(steps, Connection("client:1"), talk.journal, 1)
    script.receive_data(MAGIC_V2 + b"PUB orders\n\0\0\0\x03six", 1)
    assert script.failure.startswith("step 1 of 4, expect('PUB', topic='orders', body=b'one'), got PUB orders b'six'")


def test_a_journal_that_cannot_be_replayed_is_refused() -> None:
    talk = Conversation()
    talk.send("web", MAGIC_V2 + NOP)
    with pytest.raises(OptionError, match="the journal has no command"):
        replay(talk.journal)
    with pytest.raises(OptionError, match="the journal dropped its oldest 15 reads"):
        replay(whole_conversation(Journal(records_max=2)).journal)
    talk.receive("web", b"\x16\x03\x01 more bytes of TLS")
    with pytest.raises(OptionError, match=r"connection 127.0.0.1:50000 cannot be replayed: it has b'"):
        replay(talk.journal)


def test_frames_that_a_fault_dropped_are_not_sent() -> None:
    talk = Conversation()
    talk.subscribe("worker")
    talk.deliver("worker", 1, b"one", fault="drop")
    talk.deliver("worker", 2, b"two", fault="duplicate")
    (steps,) = replay(talk.journal)
    assert [str(step) for step in steps][-2:] == ["OK as recorded", "MESSAGE as recorded"]
