from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import FinishFailed, InvalidCommand
from nsqkit.testing.link.entries import ADDED, CHANGED, PREVIEW_LENGTH, Entry, describe, lines, preview, read_entry
from nsqkit.testing.link.faults import Faults
from nsqkit.testing.link.items import Connection, Direction, Item, Splitter
from nsqkit.wire.commands import (
    MAGIC_V2,
    encode_auth,
    encode_deferred_publish,
    encode_finish,
    encode_identify,
    encode_multi_publish,
    encode_publish,
    encode_ready,
    encode_requeue,
    encode_subscribe,
)
from nsqkit.wire.frames import OK_FRAME, encode_error, encode_response
from nsqkit.wire.messages import encode_message

ID = b"0123456789abcdef"
SUBSCRIBED = Connection("127.0.0.1:5", "worker", "orders", "billing")


def read(data: bytes, direction: Direction = Direction.TO_BROKER, connection: Connection = SUBSCRIBED) -> Entry:
    if direction is Direction.TO_BROKER:
        data = MAGIC_V2 + data
    item = Splitter(direction).feed(data)[-1]
    deliveries = {("orders", "billing", ID): encode_message(1, 1, ID, b"delivered")}
    return read_entry(item, 5, 0.5, connection, direction, deliveries)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "MAGIC"),
        (encode_identify(b'{"client_id": "x"}'), """IDENTIFY b'{"client_id": "x"}'"""),
        (encode_auth(b"secret"), "AUTH     (6 bytes)"),
        (encode_subscribe(b"t", b"c"), "SUB      t c"),
        (encode_publish(b"t", b"one"), "PUB      t b'one'"),
        (encode_deferred_publish(b"t", b"one", 250), "DPUB     t 250 b'one'"),
        (encode_multi_publish(b"t", [b"1", b"2"]), "MPUB     t 2 bodies: b'1' b'2'"),
        (encode_multi_publish(b"t", [b"1"] * 9), "MPUB     t 9 bodies: b'1' b'1' b'1' …"),
        (encode_ready(5), "RDY      5"),
        (encode_finish(ID), "FIN      0123456789abcdef orders/billing b'delivered'"),
        (encode_requeue(ID, 7), "REQ      0123456789abcdef 7 orders/billing b'delivered'"),
        (b"CLS\r\n", "CLS"),
    ],
    ids=["MAGIC", "IDENTIFY", "AUTH", "SUB", "PUB", "DPUB", "MPUB", "large_MPUB", "RDY", "FIN", "REQ", "CLS"],
)
def test_line_of_a_command(data: bytes, text: str) -> None:
    assert read(data).text == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (OK_FRAME, "OK"),
        (encode_response(b"{}"), "RESPONSE b'{}'"),
        (encode_error(InvalidCommand("bad")), "ERROR    E_INVALID bad"),
        (encode_message(9, 2, ID, b"x"), "MESSAGE  0123456789abcdef orders/billing attempts=2 b'x'"),
        (b"HTTP/1.1 200 OK", "BYTES    b'HTTP/1.1 200 OK'"),
    ],
    ids=["OK", "RESPONSE", "ERROR", "MESSAGE", "BYTES"],
)
def test_line_of_a_frame(data: bytes, text: str) -> None:
    assert read(data, Direction.TO_CLIENT).text == text


def test_fields_of_a_message() -> None:
    entry = read(encode_message(9, 2, ID, b"x"), Direction.TO_CLIENT)
    assert (entry.at_ns, entry.seconds, entry.address, entry.client_id) == (5, 0.5, "127.0.0.1:5", "worker")
    assert (entry.topic, entry.channel, entry.message_id) == ("orders", "billing", ID.decode())
    assert (entry.timestamp_ns, entry.attempts, entry.body) == (9, 2, b"x")


def test_numbers_of_commands() -> None:
    assert read(encode_ready(5)).ready_count == 5
    assert read(encode_requeue(ID, 7)).delay_ms == 7
    assert read(encode_deferred_publish(b"t", b"x", 8)).delay_ms == 8
    assert read(b"RDY\n").ready_count is None
    assert read(encode_requeue(ID, 7)).ready_count is None


def test_a_publish_has_the_topic_of_its_words_and_no_channel_of_another() -> None:
    entry = read(encode_publish(b"audit", b"x"))
    assert (entry.topic, entry.channel, entry.bodies) == ("audit", "", (b"x",))


def test_a_refused_answer_has_the_id_of_its_message() -> None:
    error = encode_error(FinishFailed("FIN 0123456789abcdef failed ID not in flight"))
    assert read(error, Direction.TO_CLIENT).message_id == ID.decode()


def test_lines_are_aligned_and_name_client_and_fault() -> None:
    item = Item("OK", OK_FRAME, "drop")
    short = read_entry(item, 5, 0.5, Connection("1:2"), Direction.TO_CLIENT, {})
    long = read_entry(Item("CLS", b"CLS\n"), 5, 12.5, SUBSCRIBED, Direction.TO_BROKER, {})
    assert lines([short, long]) == [
        " 0.500  1:2      ← OK       [fault: drop]",
        "12.500  worker:5 → CLS",
    ]
    assert str(long) == "12.500  worker:5 → CLS"


def test_preview_has_the_size_of_a_body_that_is_cut() -> None:
    assert preview(b"x" * PREVIEW_LENGTH) == repr(b"x" * PREVIEW_LENGTH)
    assert preview(b"x" * 50) == f"{b'x' * PREVIEW_LENGTH!r}… (50 bytes)"


@pytest.mark.parametrize("document", [b"no JSON", b"[]", b'{"client_id": 5}', b"\xff"])
def test_a_client_without_a_name_has_its_address(document: bytes) -> None:
    connection = Connection("1:2")
    describe(connection, Splitter(Direction.TO_BROKER).feed(MAGIC_V2 + encode_identify(document))[1])
    assert connection.client_id == ""
    assert read(b"CLS\n", connection=connection).client == "1:2"


def test_a_subscription_counts_once() -> None:
    connection = Connection("1:2")
    for line in (b"SUB t\n", b"SUB other c\n"):
        describe(connection, Item("SUB", line))
    assert (connection.topic, connection.channel) == ("t", "")


@given(
    st.sampled_from(Direction),
    st.sampled_from([b"", b"MPUB t\n\0\0\0\x08", b"PUB\n\0\0\0\0", b"FIN\nREQ\n", b"\0\0\0\x06\0\0\0\x02", b"SUB\n"]),
    st.binary(max_size=40),
)
def test_every_item_has_an_entry_with_a_line(direction: Direction, head: bytes, data: bytes) -> None:
    magic = MAGIC_V2 if direction is Direction.TO_BROKER else b""
    for item in Splitter(direction).feed(magic + head + data):
        entry = read_entry(item, 1, 0.0, SUBSCRIBED, direction, {})
        assert "\n" not in lines([entry])[0]


@pytest.mark.parametrize(
    ("name", "fault", "added", "lost"),
    [
        ("PUB", "", False, False),
        ("PUB", "error", False, True),
        ("ERROR", "error", True, False),
        ("MESSAGE", "duplicate", True, False),
        ("MESSAGE", "redeliver", True, False),
        ("MESSAGE", "oversize", False, False),
        ("OK", "drop_answer", False, True),
        ("FIN", "half_open", False, True),
    ],
    ids=["none", "refused", "error", "duplicate", "redeliver", "changed", "drop_answer", "half_open"],
)
def test_what_a_fault_did(name: str, fault: str, added: bool, lost: bool) -> None:
    entry = read_entry(Item(name, b"x\n", fault), 1, 0.0, SUBSCRIBED, Direction.TO_CLIENT, {})
    assert (entry.is_added, entry.is_lost) == (added, lost)


def test_the_names_are_those_of_faults() -> None:
    assert set(dir(Faults)) >= ADDED | CHANGED
