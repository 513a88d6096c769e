from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import BadTopic
from nsqkit.testing.conformance.received import END, NOTHING, Message, Mismatch, Received, show, split_frame
from nsqkit.wire.frames import OK_FRAME, encode_error, encode_response
from nsqkit.wire.messages import encode_message

MESSAGE = encode_message(7, 1, b"0123456789abcdef", b"body")


@pytest.mark.parametrize(
    ("frame", "received", "text"),
    [
        (OK_FRAME, Received("response", b"OK"), "response b'OK'"),
        (encode_error(BadTopic("x")), Received("error", b"E_BAD_TOPIC x"), "error b'E_BAD_TOPIC x'"),
        (MESSAGE, Received("message", MESSAGE[8:]), "message 0123456789abcdef, attempt 1, b'body'"),
        (b"\0\0\0\5\0\0\0\7x", Received("a frame of type 7, with", b"x"), "a frame of type 7, with b'x'"),
        (b"\0\0\0\1x", Received("a frame of size 1, with", b"x"), "a frame of size 1, with b'x'"),
        (b"\0\0\0\5\0\0\0\2x", Received("message", b"x"), "message b'x'"),
    ],
    ids=["response", "error", "message", "unknown-type", "wrong-size", "short-message"],
)
def test_frames_are_read_and_shown(frame, received, text):
    assert split_frame(frame) == (received, b"")
    assert str(received) == text


@given(st.binary(max_size=300), st.binary(max_size=20))
def test_frame_is_read_once_it_is_complete(payload: bytes, after: bytes):
    frame = encode_response(payload)
    assert split_frame(frame + after) == (Received("response", payload), after)
    assert split_frame(frame[:-1]) == (None, frame[:-1])


def test_message_has_its_parts():
    received, _ = split_frame(MESSAGE)
    assert received is not None
    assert received.message() == Message(7, 1, b"0123456789abcdef", b"body")


@pytest.mark.parametrize("received", [Received("response", b"OK"), Received("message", b"x"), Received(END)], ids=str)
def test_other_items_are_no_message(received):
    with pytest.raises(Mismatch) as raised:
        received.message()
    assert (raised.value.expected, raised.value.came) == ("a message", str(received))


def test_absence_is_an_item():
    assert str(Received(NOTHING)) == "nothing"
    assert str(Received(END)) == "the end of the connection"


def test_many_bytes_are_shortened():
    assert show(b"x" * 160) == repr(b"x" * 160)
    assert show(b"x" * 161) == f"{b'x' * 160!r}… (161 bytes)"
