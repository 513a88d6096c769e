from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nsqkit.errors import OptionError
from nsqkit.testing.link.faults import Faults
from nsqkit.testing.link.items import Connection, Direction, Item
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.link.link import Link
from nsqkit.testing.link.recording import RECORD_OVERHEAD
from nsqkit.wire.commands import MAGIC_V2, NOP
from tests.testing.link.traffic import IDS, START_NS, Conversation, whole_conversation

NOPS = [Item("NOP", NOP)]


def test_journal_has_the_items_of_a_link_with_time_and_direction() -> None:
    journal = Journal()
    link = Link("client:1", journal, Faults())
    link.client_end.receive_data(MAGIC_V2 + NOP, 5)
    assert [(entry.at_ns, entry.address, entry.name) for entry in journal] == [
        (5, "client:1", "MAGIC"),
        (5, "client:1", "NOP"),
    ]
    assert {entry.direction for entry in journal} == {Direction.TO_BROKER}


def test_times_begin_with_the_first_entry() -> None:
    journal = whole_conversation().journal
    first, second, *_ = journal
    assert (first.at_ns, first.seconds) == (START_NS + 1_000_000, 0.0)
    assert second.seconds == 0.001


def test_queries() -> None:
    journal = whole_conversation().journal
    assert len(journal) == len(list(journal)) == 20
    assert [entry.bodies for entry in journal.commands("PUB")] == [(b"one",)]
    assert [entry.name for entry in journal.commands(topic="orders", client="worker")][-2:] == ["TOUCH", "FIN"]
    assert [entry.client_id for entry in journal.commands("FIN", channel="billing")] == ["worker"] * 2
    assert [entry.attempts for entry in journal.messages("orders", "billing")] == [1, 1, 2]
    assert journal.messages("orders", "other") == journal.commands("PUB", client="worker") == []
    (subscription,) = journal.commands("SUB")
    assert [entry.name for entry in journal.frames("OK", client=subscription.address)] == ["OK", "OK"]


def test_an_answer_has_the_body_of_its_delivery() -> None:
    journal = whole_conversation().journal
    bodies = [(entry.name, entry.body) for name in ("FIN", "REQ", "TOUCH") for entry in journal.commands(name)]
    assert bodies == [("FIN", b"one"), ("FIN", b"two"), ("REQ", b"two"), ("TOUCH", b"two")]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(OptionError, match="there is no command 'MESSAGE'; the commands are AUTH, BYTES, CLS"):
        Journal().commands("MESSAGE")
    with pytest.raises(OptionError, match="there is no frame 'FIN'"):
        Journal().frames("FIN")


def test_text_has_a_line_for_each_entry() -> None:
    journal = whole_conversation().journal
    text = str(journal).splitlines()
    assert len(text) == len(journal)
    assert text[0] == "0.000  127.0.0.1:50000 → MAGIC"
    assert journal.tail(2).splitlines() == [
        f"0.016  worker:50001 → TOUCH    {IDS[2].decode()} orders/billing b'two'",
        f"0.016  worker:50001 → FIN      {IDS[2].decode()} orders/billing b'two'",
    ]
    assert journal.tail(0) == ""


def test_clear_forgets_everything() -> None:
    talk = whole_conversation()
    talk.journal.clear()
    assert list(talk.journal) == []
    talk.send("web", NOP)
    (entry,) = talk.journal
    assert entry.seconds == 0.0


def test_journal_that_is_off_records_nothing() -> None:
    assert len(whole_conversation(Journal(enabled=False)).journal) == 0


@pytest.mark.parametrize(
    "journal", [Journal(records_max=3), Journal(size_max=3 * (RECORD_OVERHEAD + 4))], ids=["records", "size"]
)
def test_the_oldest_reads_are_dropped_and_the_text_says_so(journal: Journal) -> None:
    for at_ns in range(1, 6):
        journal.record(at_ns, Connection("a"), Direction.TO_BROKER, NOPS)
    assert [entry.at_ns for entry in journal] == [3, 4, 5]
    assert journal.dropped_count == 2
    assert journal.tail(1).splitlines()[0] == "(the oldest 2 reads were dropped: the journal was full)"


def test_a_read_larger_than_the_journal_is_kept_alone() -> None:
    journal = Journal(size_max=1)
    for at_ns in (1, 2):
        journal.record(at_ns, Connection("a"), Direction.TO_BROKER, NOPS)
    assert [entry.at_ns for entry in journal] == [2]


def test_wrong_limit_is_refused() -> None:
    with pytest.raises(OptionError, match="records_max must be at least 1, not 0"):
        Journal(records_max=0)
    with pytest.raises(OptionError, match="size_max must be at least 1, not -1"):
        Journal(size_max=-1)


def test_a_saved_journal_is_loaded_with_times_and_names(tmp_path: Path) -> None:
    journal = whole_conversation().journal
    journal.save(tmp_path / "journal.jsonl")
    loaded = Journal.load(tmp_path / "journal.jsonl")
    assert str(loaded) == str(journal)
    assert list(loaded) == list(journal)


def test_a_journal_is_read_while_another_thread_records() -> None:
    talk = Conversation(Journal(records_max=50))
    stop = threading.Event()

    def record() -> None:
        while not stop.is_set():
            talk.publish("web", b"t", b"x")

    talk.send("web", MAGIC_V2)
    thread = threading.Thread(target=record)
    thread.start()
    try:
        for _ in range(200):
            assert {entry.name for entry in talk.journal} <= {"MAGIC", "PUB", "OK"}
            talk.journal.clear()
    finally:
        stop.set()
        thread.join()
