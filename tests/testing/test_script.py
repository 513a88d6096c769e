from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import FinishFailed, OptionError
from nsqkit.testing.link.items import Connection
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.script import (
    MATCHES,
    Script,
    Step,
    check_steps,
    close,
    expect,
    heartbeat,
    message,
    reply,
    reset,
    wait,
)
from nsqkit.wire.commands import (
    MAGIC_V2,
    NOP,
    encode_deferred_publish,
    encode_finish,
    encode_identify,
    encode_multi_publish,
    encode_publish,
    encode_ready,
    encode_requeue,
    encode_subscribe,
    encode_touch,
)
from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME, FrameDecoder, MessageFrame, encode_error, encode_response

FIRST_ID = b"%016x" % 1
SUBSCRIBE = MAGIC_V2 + encode_subscribe(b"orders", b"billing")


def play(*steps: Step, now_ns: int = 1) -> Script:
    return Script(check_steps(steps), Connection("client:1"), Journal(), now_ns)


def test_steps_are_played_in_order() -> None:
    script = play(
        expect("IDENTIFY", client_id="worker"),
        reply({"max_rdy_count": 9}),
        expect("SUB", topic="orders", channel="billing"),
        reply(),
        expect("RDY", ready_count=5),
        message("one", attempts=3),
        expect("FIN", body="one"),
        close(),
    )
    script.receive_data(MAGIC_V2 + encode_identify(b'{"client_id": "worker"}'), 1)
    assert script.data_to_send() == encode_response(json.dumps({"max_rdy_count": 9}).encode())
    script.receive_data(encode_subscribe(b"orders", b"billing"), 2)
    assert script.data_to_send() == OK_FRAME
    script.receive_data(encode_ready(5), 3)
    assert FrameDecoder().feed(script.data_to_send()) == [MessageFrame(3, 3, FIRST_ID, b"one")]
    assert script.progress == "step 7 of 8, expect('FIN', body=b'one')"
    assert not script.is_complete
    script.receive_data(encode_finish(FIRST_ID), 4)
    assert script.is_complete
    assert script.ended
    assert not script.is_reset
    assert script.failure == ""


def test_script_may_begin_with_an_answer() -> None:
    script = play(reply(), reset())
    assert script.data_to_send() == OK_FRAME
    assert script.ended
    assert script.is_reset


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (encode_publish(b"t", b"x"), {"topic": "t", "body": b"x"}),
        (encode_multi_publish(b"t", [b"x", b"y"]), {"topic": "t", "bodies": ["x", "y"]}),
        (encode_deferred_publish(b"t", b"x", 7), {"topic": "t", "body": "x", "delay_ms": 7}),
        (encode_requeue(FIRST_ID, 9), {"message_id": FIRST_ID.decode(), "delay_ms": 9}),
        (encode_touch(FIRST_ID), {"message_id": FIRST_ID.decode()}),
        (b"CLS\n", {}),
        (NOP, {}),
    ],
    ids=["PUB", "MPUB", "DPUB", "REQ", "TOUCH", "CLS", "NOP"],
)
def test_commands_are_compared(command: bytes, fields: dict[str, Any]) -> None:
    name = command.split()[0].decode()
    script = play(expect(name, **fields))
    script.receive_data(MAGIC_V2 + command, 1)
    assert script.is_complete
    for key in fields:
        wrong: Any = {"delay_ms": 1000, "bodies": []}.get(key, "other")
        other = play(expect(name, **{**fields, key: wrong}))
        other.receive_data(MAGIC_V2 + command, 1)
        assert other.failure.startswith(f"step 1 of 1, expect('{name}'")


def test_another_command_ends_the_connection_and_is_named() -> None:
    script = play(expect("FIN"), reply())
    script.receive_data(SUBSCRIBE, 1)
    assert script.failure == "step 1 of 2, expect('FIN'), got SUB orders billing from client:1"
    assert script.ended
    script.receive_data(encode_finish(FIRST_ID), 1)
    assert not script.has_output or script.data_to_send() == b""


def test_other_bytes_are_another_command() -> None:
    script = play(expect("SUB"))
    script.receive_data(b"GET / HTTP/1.1", 1)
    assert script.failure == "step 1 of 1, expect('SUB'), got BYTES b'GET / HTTP/1.1' from client:1"


def test_heartbeats_need_no_step_for_their_answer() -> None:
    script = play(heartbeat(), expect("SUB"), reply("E_BAD_TOPIC no"))
    assert script.data_to_send() == HEARTBEAT_FRAME
    script.receive_data(MAGIC_V2 + NOP + encode_subscribe(b"t", b"c") + NOP, 1)
    assert script.data_to_send()[8:] == b"E_BAD_TOPIC no"
    assert script.is_complete


def test_commands_after_the_last_step_are_accepted() -> None:
    script = play(expect("SUB"))
    script.receive_data(SUBSCRIBE + encode_ready(1) + b"CLS\n", 1)
    script.receive_data(encode_ready(1), 1)
    assert script.is_complete
    assert not script.ended


def test_a_wait_ends_at_its_deadline() -> None:
    script = play(expect("SUB"), wait(2), reply(), expect("RDY"), wait(timedelta(seconds=1)), close())
    script.receive_data(SUBSCRIBE + encode_ready(1), 10)
    assert script.next_deadline() == 2_000_000_010
    assert not script.has_output
    script.handle_deadline(2_000_000_009)
    assert not script.has_output
    script.handle_deadline(2_000_000_010)
    assert script.data_to_send() == OK_FRAME
    assert script.next_deadline() == 3_000_000_010
    script.handle_deadline(3_000_000_010)
    assert script.ended
    assert script.next_deadline() is None


def test_end_of_the_client_ends_the_connection() -> None:
    script = play(expect("SUB"))
    script.receive_eof(1)
    assert script.ended
    assert not script.is_complete


@pytest.mark.parametrize(
    ("step", "data"),
    [
        (reply(), OK_FRAME),
        (reply("CLOSE_WAIT"), encode_response(b"CLOSE_WAIT")),
        (reply("E_FIN_FAILED late"), encode_error(FinishFailed("late"))),
        (reply(FinishFailed("late")), encode_error(FinishFailed("late"))),
        (reply(b"\0garbage"), b"\0garbage"),
        (reply({"a": 1}), encode_response(b'{"a": 1}')),
    ],
    ids=["OK", "text", "error_text", "error", "bytes", "JSON"],
)
def test_answers(step: Step, data: bytes) -> None:
    assert play(step).data_to_send() == data


def test_values_of_a_message() -> None:
    script = play(
        message(b"one", attempts=65535, message_id="0123456789abcdef", timestamp_ns=5), message("two"), message("three")
    )
    first, second, third = FrameDecoder().feed(script.data_to_send())
    assert first == MessageFrame(5, 65535, b"0123456789abcdef", b"one")
    assert second == MessageFrame(1, 1, b"%016x" % 2, b"two")
    assert third == MessageFrame(1, 1, b"%016x" % 3, b"three")


def test_journal_has_both_directions() -> None:
    journal = Journal()
    script = Script(check_steps([expect("SUB"), reply(), message("one")]), Connection("client:1"), journal, 1)
    script.receive_data(SUBSCRIBE, 1)
    assert [entry.name for entry in journal] == ["MAGIC", "SUB", "OK", "MESSAGE"]
    assert [entry.topic for entry in journal.messages("orders", "billing")] == ["orders"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: expect("FINISH"), "there is no command 'FINISH' to expect; allowed are IDENTIFY, AUTH"),
        (lambda: expect("RDY", topic="t"), "RDY has no field 'topic' to expect; allowed is ready_count"),
        (lambda: expect("CLS", topic="t"), "CLS has no field 'topic' to expect; allowed is no field"),
        (lambda: expect("RDY", ready_count="5"), "ready_count is '5'; allowed is a whole number"),
        (lambda: expect("PUB", body=5), "body is 5; allowed is a text or bytes"),
        (lambda: expect("MPUB", bodies="one"), "bodies is 'one'; allowed is a list of texts or bytes"),
        (lambda: expect("SUB", topic=b"t"), "topic is b't'; allowed is a text"),
        (lambda: message("x", attempts=65536), "attempts is 65536; allowed are 0 to 65535"),
        (lambda: message("x", message_id="short"), "message_id is 'short'; allowed are 16 ASCII characters"),
        (lambda: message("x", timestamp_ns=-1), "timestamp_ns is -1"),
        (lambda: wait(-1), "seconds"),
        (lambda: check_steps([]), "a script must have at least one step"),
        (lambda: check_steps([expect]), "step 1 is <function expect"),
        (lambda: check_steps([close(), reply()]), r"step 2, reply\('OK'\), can never be reached: step 1 is close\(\)"),
    ],
    ids=[
        *("command", "field", "no_field", "number", "body", "bodies", "text", "attempts", "id", "timestamp", "time"),
        *("none", "no_step", "after_close"),
    ],
)
def test_a_step_that_cannot_be_is_refused(call: Any, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        call()


def test_steps_are_shown_as_they_are_written() -> None:
    steps = [expect("FIN", body="x"), reply({"a": 1}), reply(b"x"), message("x"), heartbeat(), wait(0.5), reset()]
    assert [str(step) for step in steps] == [
        "expect('FIN', body=b'x')",
        "reply({'a': 1})",
        "reply(b'x')",
        "message(b'x', attempts=1)",
        "heartbeat()",
        "wait(0.5)",
        "reset()",
    ]


COMMANDS = {
    "SUB": encode_subscribe(b"t", b"c"),
    "PUB": encode_publish(b"t", b"one\ntwo"),
    "RDY": encode_ready(3),
    "FIN": encode_finish(FIRST_ID),
    "NOP": NOP,
}


@given(st.data(), st.lists(st.sampled_from(sorted(COMMANDS)), min_size=1, max_size=6))
def test_result_does_not_depend_on_the_reads(data: st.DataObject, names: list[str]) -> None:
    expected = data.draw(st.lists(st.sampled_from(sorted(COMMANDS)), min_size=1, max_size=6) | st.just(names))
    stream = MAGIC_V2 + b"".join(COMMANDS[name] for name in names)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1))))
    scripts = [play(*(step for name in expected for step in (expect(name), reply(name)))) for _ in range(2)]
    scripts[0].receive_data(stream, 1)
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        scripts[1].receive_data(stream[start:end], 1)
    results = [(script.is_complete, script.failure, script.data_to_send()) for script in scripts]
    assert results[0] == results[1]
    if names == expected:
        assert scripts[0].is_complete


@given(st.sampled_from([b"", MAGIC_V2]), st.binary(max_size=50), st.sampled_from(sorted(MATCHES)))
def test_any_bytes_are_accepted_or_named(magic: bytes, data: bytes, name: str) -> None:
    script = play(expect(name), wait(1))
    script.receive_data(magic + data, 1)
    assert bool(script.failure) == script.ended
