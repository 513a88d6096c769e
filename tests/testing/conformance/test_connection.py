from __future__ import annotations

import pytest

from nsqkit.testing.conformance.connection import Connection, encode_messages, encode_mpub, encode_pub, sized
from nsqkit.testing.conformance.received import END, NOTHING, Mismatch, Received
from nsqkit.wire.commands import encode_batch, encode_multi_publish, encode_publish
from nsqkit.wire.compression import Deflate
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, OK_FRAME, encode_response
from nsqkit.wire.messages import encode_message
from tests.testing.conformance.brokers import prepared_broker, right_broker

MESSAGE = encode_message(7, 1, b"0123456789abcdef", b"body")


def connect(address: str, transcript: list[str] | None = None) -> Connection:
    return Connection(address, [] if transcript is None else transcript, name="c:", timeout=30.0)


def test_commands_are_those_of_the_protocol():
    assert sized(b"x") == b"\0\0\0\1x"
    assert encode_pub(b"t", b"x") == encode_publish(b"t", b"x")
    assert encode_mpub(b"t", b"x", b"yy") == encode_multi_publish(b"t", [b"x", b"yy"])
    assert encode_messages(b"x", b"yy") == encode_batch([b"x", b"yy"])


def test_transcript_has_both_directions():
    transcript: list[str] = []
    with right_broker() as target, connect(target.tcp_address, transcript) as connection:
        connection.publish(b"t", b"x")
        connection.send(b"NO\n")
        connection.expect_error(b"E_INVALID invalid command NO", ends=True)
    assert transcript == [
        "c: sent b'  V2'",
        r"c: sent b'PUB t\n\x00\x00\x00\x01x'",
        "c: received response b'OK'",
        r"c: sent b'NO\n'",
        "c: received error b'E_INVALID invalid command NO'",
        "c: received the end of the connection",
    ]


@pytest.mark.parametrize(
    ("answer", "expect", "expected", "came"),
    [
        (CLOSE_WAIT_FRAME, Connection.expect_response, "response b'OK'", "response b'CLOSE_WAIT'"),
        (OK_FRAME, lambda c: c.expect_error(b"E_X", ends=True), "error b'E_X'", "response b'OK'"),
        (OK_FRAME, Connection.expect_end, END, "response b'OK'"),
        (OK_FRAME, Connection.expect_nothing, NOTHING, "response b'OK'"),
        (OK_FRAME, Connection.expect_message, "a message", "response b'OK'"),
        (
            MESSAGE,
            lambda c: c.expect_message(b"x", attempts=2),
            "a message with the body b'x' and attempt 2",
            "message 0123456789abcdef, attempt 1, b'body'",
        ),
        (encode_response(b"[]"), Connection.identify, "a response with a JSON object", "response b'[]'"),
        (OK_FRAME, Connection.identify, "a response with a JSON object", "response b'OK'"),
        (
            encode_response(b"[" * 100_000),
            Connection.identify,
            "a response with a JSON object",
            f"response {b'[' * 160!r}… (100000 bytes)",
        ),
    ],
    ids=["response", "error", "end", "nothing", "message", "body", "list", "no-json", "deep"],
)
def test_other_item_is_a_mismatch(answer, expect, expected, came):
    with prepared_broker(answer) as target, connect(target.tcp_address) as connection:
        with pytest.raises(Mismatch) as raised:
            expect(connection)
        assert (raised.value.expected, raised.value.came) == (expected, came)


def test_plain_bytes_after_an_upgrade_are_a_mismatch():
    with prepared_broker(b"\xff" * 20, OK_FRAME) as target:
        with connect(target.tcp_address) as connection:
            connection.start_compression(Deflate(6))
            with pytest.raises(Mismatch, match="expected a compressed stream; came the stream is not deflate"):
                connection.receive()
        with connect(target.tcp_address) as connection:
            with pytest.raises(Mismatch, match="expected a handshake of TLS"):
                connection.start_tls()


def test_nothing_comes_until_the_limit():
    with right_broker() as target, connect(target.tcp_address) as connection:
        assert connection.receive(0.01) == Received(NOTHING)


def test_sending_on_a_closed_connection_is_a_mismatch():
    with right_broker() as target:
        connection = connect(target.tcp_address)
        connection.close()
        with pytest.raises(Mismatch, match="expected a connection that accepts bytes"):
            connection.send(b"NOP\n")
