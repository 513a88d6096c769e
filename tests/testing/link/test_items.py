from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import FinishFailed
from nsqkit.testing.link.items import Direction, Scan, Splitter
from nsqkit.wire.commands import MAGIC_V2, NOP, encode_identify, encode_multi_publish, encode_publish, encode_subscribe
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, HEARTBEAT_FRAME, OK_FRAME, encode_error, encode_response
from nsqkit.wire.messages import encode_message

COMMANDS = {
    "MAGIC": MAGIC_V2,
    "IDENTIFY": encode_identify(b"{}"),
    "SUB": encode_subscribe(b"t", b"c"),
    "PUB": encode_publish(b"t", b"one\ntwo"),
    "MPUB": encode_multi_publish(b"t", [b"a", b"bc"]),
    "NOP": NOP,
}
FRAMES = {
    "OK": OK_FRAME,
    "HEARTBEAT": HEARTBEAT_FRAME,
    "CLOSE_WAIT": CLOSE_WAIT_FRAME,
    "RESPONSE": encode_response(b"{}"),
    "ERROR": encode_error(FinishFailed("FIN failed")),
    "MESSAGE": encode_message(1, 1, b"0" * 16, b"body"),
}


@pytest.mark.parametrize(
    ("direction", "stream"),
    [(Direction.TO_BROKER, COMMANDS), (Direction.TO_CLIENT, FRAMES)],
    ids=["commands", "frames"],
)
@given(data=st.data())
def test_stream_is_divided_in_the_same_way_in_any_chunks(
    direction: Direction, stream: dict[str, bytes], data: st.DataObject
) -> None:
    whole = b"".join(stream.values())
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1))))
    splitter = Splitter(direction)
    items = [
        item
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)
        for item in splitter.feed(whole[start:end])
    ]
    assert {item.name: item.data for item in items} == stream


@given(
    st.lists(st.sampled_from([*COMMANDS.values()] * 2 + [b"FIN 0123456789abcdef\n"] * 9 + [b"FIN x\n", b"\n"])),
    st.data(),
)
def test_scan_agrees_with_feed(commands: list[bytes], data: st.DataObject) -> None:
    check_scan(Direction.TO_BROKER, MAGIC_V2, b"".join(commands), data)


@given(st.lists(st.sampled_from([*FRAMES.values()] * 2 + [OK_FRAME] * 9 + [b"\0\0\0\1"])), st.data())
def test_scan_of_frames_agrees_with_feed(frames: list[bytes], data: st.DataObject) -> None:
    check_scan(Direction.TO_CLIENT, b"", b"".join(frames), data)


def check_scan(direction: Direction, head: bytes, whole: bytes, data: st.DataObject) -> None:
    fed, scanned = Splitter(direction), Splitter(direction)
    fed.feed(head)
    assert scanned.scan(head) is None or not head
    scanned.feed(head)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(whole) - 1, 1)), max_size=9)))
    for start, end in pairwise([0, *cuts, len(whole)]):
        piece = whole[start:end]
        items, scan = fed.feed(piece), scanned.scan(piece)
        if scan is None:
            assert scanned.feed(piece) == items
        else:
            assert scan == Scan(b"".join(item.data for item in items), Counter(item.name for item in items))
        state = fed.rest(), fed.rest_name, fed.rest_size, fed.is_opaque
        assert (scanned.rest(), scanned.rest_name, scanned.rest_size, scanned.is_opaque) == state


def test_words_and_body_of_a_command() -> None:
    splitter = Splitter(Direction.TO_BROKER)
    _, publish = splitter.feed(MAGIC_V2 + encode_publish(b"t", b"x"))
    assert (publish.words, publish.body) == ([b"t"], b"x")


@pytest.mark.parametrize(
    ("direction", "data"),
    [(Direction.TO_BROKER, b"GET / HTTP/1.1\r\n"), (Direction.TO_CLIENT, b"HTTP/1.1 200 OK\r\n")],
    ids=["commands", "frames"],
)
def test_bytes_of_another_protocol_are_one_item(direction: Direction, data: bytes) -> None:
    splitter = Splitter(direction)
    assert [(item.name, item.data) for item in splitter.feed(data)] == [("BYTES", data)]
    assert splitter.is_opaque


@given(st.binary(), st.sampled_from(Direction))
def test_no_byte_is_lost(data: bytes, direction: Direction) -> None:
    splitter = Splitter(direction)
    items = splitter.feed(data)
    assert b"".join(item.data for item in items) + splitter.make_opaque() == data
