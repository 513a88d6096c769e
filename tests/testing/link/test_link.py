from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import FinishFailed, OptionError, PublishFailed
from nsqkit.testing.link.faults import Faults
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.link.link import OUTBOX_SIZE_MAX, Link, LinkEnd
from nsqkit.wire.commands import MAGIC_V2, NOP, encode_finish, encode_identify, encode_publish, encode_subscribe
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, HEARTBEAT_FRAME, OK_FRAME, encode_error, encode_response
from nsqkit.wire.messages import encode_message


def test_bytes_of_each_end_leave_at_the_other() -> None:
    link = Link("client:1", Journal(), Faults())
    link.client_end.receive_data(MAGIC_V2, 1)
    link.broker_end.receive_data(OK_FRAME, 2)
    assert link.broker_end.data_to_send() == MAGIC_V2
    assert link.client_end.data_to_send() == OK_FRAME
    assert not link.client_end.has_output


def test_answers_follow_the_end_of_the_client() -> None:
    link = Link("client:1", Journal(), Faults())
    link.client_end.receive_data(MAGIC_V2 + b"NO", 1)
    link.client_end.receive_eof(1)
    assert link.broker_end.ended
    assert link.broker_end.data_to_send() == MAGIC_V2 + b"NO"
    assert not link.client_end.ended
    link.broker_end.receive_data(OK_FRAME, 2)
    link.broker_end.receive_eof(3)
    assert link.client_end.ended
    assert link.client_end.data_to_send() == OK_FRAME


def test_end_of_the_broker_ends_both() -> None:
    link = Link("client:1", Journal(), Faults())
    link.broker_end.receive_eof(1)
    assert link.client_end.ended
    assert link.broker_end.ended


def test_nothing_is_read_while_the_other_end_is_full() -> None:
    link = Link("client:1", Journal(), Faults())
    link.client_end.receive_data(MAGIC_V2 + encode_publish(b"t", bytes(OUTBOX_SIZE_MAX)), 1)
    assert link.client_end.outbox_full
    link.broker_end.data_to_send()
    assert link.broker_end.has_events
    assert not link.client_end.outbox_full


def test_reads_and_heartbeats_are_counted() -> None:
    link = Link("client:1", Journal(), Faults())
    for receive, data, counts in [
        (link.client_end.receive_data, MAGIC_V2, (1, 0, False)),
        (link.broker_end.receive_data, OK_FRAME + HEARTBEAT_FRAME, (2, 1, True)),
        (link.broker_end.receive_data, OK_FRAME, (3, 1, True)),
        (link.client_end.receive_data, NOP, (4, 1, False)),
    ]:
        receive(data, 1)
        assert (link.traffic_count, link.heartbeat_count, link.owes_answer) == counts


# ---- faults ----------------------------------------------------------------------------------------------------------


class Talk:
    """A link with faults, whose client has subscribed; each method returns what leaves at both ends."""

    def __init__(self, seed: int = 0) -> None:
        self.faults = Faults(seed)
        self.journal = Journal()
        self.link = Link("127.0.0.1:5", self.journal, self.faults)
        self.now_ns = 1
        self.send(MAGIC_V2 + encode_identify(b'{"client_id": "worker"}') + encode_subscribe(b"t", b"c"))
        self.receive(OK_FRAME * 2)

    def send(self, *parts: bytes) -> tuple[bytes, bytes]:
        for part in parts:
            self.link.client_end.receive_data(part, self.now_ns)
        return self.output()

    def receive(self, *parts: bytes) -> tuple[bytes, bytes]:
        for part in parts:
            self.link.broker_end.receive_data(part, self.now_ns)
        return self.output()

    def output(self) -> tuple[bytes, bytes]:
        return self.link.broker_end.data_to_send(), self.link.client_end.data_to_send()

    def wait_until(self, now_ns: int) -> tuple[bytes, bytes]:
        self.now_ns = now_ns
        self.link.handle_deadline(now_ns)
        return self.output()

    def recorded(self) -> list[tuple[str, str]]:
        return [(entry.name, entry.fault) for entry in self.journal][5:]


PUB = encode_publish(b"t", b"body")
FIN = encode_finish(b"0" * 16)
MESSAGE = encode_message(1, 1, b"0" * 16, b"body")
E_PUB = encode_error(PublishFailed("PUB failed by faults.error()"))
E_FIN = encode_error(FinishFailed("FIN failed by faults.error()"))
SECOND = 10**9


def test_client_is_known_after_the_handshake() -> None:
    connection = Talk().link.connection
    assert (connection.client_id, connection.topic, connection.channel) == ("worker", "t", "c")


def test_client_is_known_after_a_handshake_in_parts() -> None:
    faults = Faults()
    link = Link("127.0.0.1:5", Journal(), faults)
    identify = encode_identify(b'{"client_id": "worker"}')
    with faults.drop(command="FIN"):
        link.client_end.receive_data(MAGIC_V2 + identify[:-9], 1)
        link.client_end.receive_data(identify[-9:], 2)
    assert link.connection.client_id == "worker"


def test_connection_is_closed_on_accept() -> None:
    faults = Faults()
    with faults.close_on_accept(times=1) as fault:
        link = Link("client:1", Journal(), faults)
        assert link.is_silent
        assert link.client_end.ended
        assert fault.count == 1
        assert not Link("client:2", Journal(), faults).is_silent


def test_silent_connection_never_answers_and_is_reset_when_the_fault_is_gone() -> None:
    faults = Faults()
    with faults.silence(client="client:1"):
        link = Link("client:1", Journal(), faults)
        assert not Link("client:2", Journal(), faults).is_silent
        link.client_end.receive_data(MAGIC_V2, 1)
        assert link.is_silent
        assert not link.client_end.has_output
        assert not link.broker_end.has_output
    link.client_end.receive_data(PUB, 2)
    assert link.is_reset
    assert link.client_end.ended


def test_connection_is_reset_at_an_item() -> None:
    talk = Talk()
    talk.faults.reset(command="PUB")
    assert talk.send(NOP + PUB) == (b"", b"")
    assert talk.link.is_reset
    assert talk.link.broker_end.ended
    assert talk.recorded() == [("NOP", ""), ("PUB", "reset")]


@pytest.mark.parametrize("byte", [0, 3, 100])
def test_connection_is_closed_at_a_byte_of_an_item(byte: int) -> None:
    talk = Talk()
    talk.faults.close_at(byte, frame=2, command="MESSAGE")
    assert talk.receive(MESSAGE, MESSAGE, MESSAGE) == (b"", MESSAGE + MESSAGE[:byte])
    assert talk.link.client_end.ended
    assert talk.link.broker_end.ended
    assert not talk.link.is_reset


def test_half_open_connection_loses_everything_and_is_reset_when_the_fault_is_gone() -> None:
    talk = Talk()
    with talk.faults.half_open() as fault:
        assert talk.send(PUB[:5], PUB[5:]) == (b"", b"")
        assert talk.receive(HEARTBEAT_FRAME) == (b"", b"")
        talk.link.broker_end.receive_eof(5)
        assert talk.link.broker_end.ended
        assert not talk.link.client_end.ended
        assert fault.count == 1
    assert talk.recorded() == [("PUB", "half_open"), ("HEARTBEAT", "half_open")]
    talk.send(NOP)
    assert talk.link.is_reset


def test_half_open_connection_may_lose_one_direction_only() -> None:
    talk = Talk()
    talk.faults.half_open("to_client", command="PUB")
    assert talk.receive(MESSAGE) == (b"", MESSAGE)
    assert talk.send(PUB) == (PUB, b"")
    assert talk.receive(OK_FRAME) == (b"", b"")
    assert talk.send(NOP) == (NOP, b"")
    talk.link.client_end.receive_eof(5)
    assert talk.link.broker_end.ended


def test_item_is_delayed_and_the_next_ones_wait() -> None:
    talk = Talk()
    talk.faults.delay(1, command="MESSAGE", times=1)
    assert talk.receive(OK_FRAME + MESSAGE + HEARTBEAT_FRAME) == (b"", OK_FRAME)
    assert talk.link.next_deadline() == SECOND + 1
    assert talk.receive(MESSAGE) == (b"", b"")
    assert talk.wait_until(SECOND) == (b"", b"")
    assert talk.wait_until(SECOND + 1) == (b"", MESSAGE + HEARTBEAT_FRAME + MESSAGE)
    assert talk.link.next_deadline() is None


def test_end_waits_for_delayed_bytes() -> None:
    talk = Talk()
    talk.faults.delay(1)
    talk.receive(MESSAGE)
    talk.link.broker_end.receive_eof(1)
    assert not talk.link.client_end.ended
    assert talk.wait_until(SECOND + 1) == (b"", MESSAGE)
    assert talk.link.client_end.ended


def test_delayed_bytes_count_as_waiting() -> None:
    talk = Talk()
    talk.faults.delay(1)
    talk.send(encode_publish(b"t", bytes(OUTBOX_SIZE_MAX)))
    assert talk.link.client_end.outbox_full
    talk.wait_until(SECOND + 1)
    assert talk.link.broker_end.has_events
    assert not talk.link.client_end.outbox_full


def test_rate_is_limited() -> None:
    talk = Talk()
    talk.faults.bandwidth(100, command="PUB")
    assert talk.send(PUB) == (PUB[:1], b"")
    assert talk.wait_until(SECOND // 100 + 1) == (PUB[1:2], b"")
    assert talk.wait_until(SECOND) == (PUB[2:], b"")


def test_slices_are_written_one_by_one() -> None:
    talk = Talk()
    talk.faults.slices(4, direction="to_client")
    assert talk.receive(OK_FRAME) == (b"", OK_FRAME[:4])
    assert talk.link.client_end.has_events
    assert talk.link.next_deadline() == 1
    talk.link.handle_deadline(1)
    assert talk.link.next_deadline() is None  # before the slice is taken
    assert talk.output() == (b"", OK_FRAME[4:8])
    assert talk.wait_until(1) == (b"", OK_FRAME[8:])


def test_item_is_changed() -> None:
    talk = Talk()
    talk.faults.garbage(b"??", command="HEARTBEAT")
    talk.faults.wrong_length(3, command="MESSAGE", times=1)
    talk.faults.wrong_type(9, command="MESSAGE", times=1)
    talk.faults.oversize(100, command="MESSAGE", times=1)
    data = talk.receive(HEARTBEAT_FRAME + 3 * MESSAGE)[1]
    one, two, three = b"\0\0\0\3" + MESSAGE[4:], MESSAGE[:4] + b"\0\0\0\x09" + MESSAGE[8:], b"\0\0\0\x64" + MESSAGE[4:]
    assert data == b"??" + one + two + three.ljust(104, b"\0")
    assert [fault for _, fault in talk.recorded()] == ["garbage", "wrong_length", "wrong_type", "oversize"]


@pytest.mark.parametrize("name", ["HEARTBEAT", "CLOSE_WAIT", "OK"])
def test_frame_is_dropped(name: str) -> None:
    frames = {"HEARTBEAT": HEARTBEAT_FRAME, "CLOSE_WAIT": CLOSE_WAIT_FRAME, "OK": OK_FRAME}
    talk = Talk()
    with talk.faults.drop(command=name):
        assert talk.receive(*frames.values()) == (b"", b"".join(frames[key] for key in frames if key != name))
    assert (name, "drop") in talk.recorded()
    assert talk.receive(frames[name]) == (b"", frames[name])


def test_command_is_dropped_also_if_it_comes_in_pieces() -> None:
    talk = Talk()
    talk.faults.drop(command="FIN", times=1)
    assert talk.send(NOP + FIN[:9], FIN[9:] + FIN) == (NOP + FIN, b"")


def test_errors_come_in_the_order_of_the_answers() -> None:
    talk = Talk()
    talk.faults.error("E_FIN_FAILED", command="FIN")
    talk.faults.error("E_PUB_FAILED", command="PUB", after=1, times=1)
    assert talk.send(PUB + FIN + PUB + PUB) == (PUB, b"")
    assert talk.receive(HEARTBEAT_FRAME) == (b"", HEARTBEAT_FRAME)
    assert talk.receive(OK_FRAME[:3], OK_FRAME[3:]) == (b"", OK_FRAME + E_FIN + E_PUB)
    assert talk.link.client_end.ended
    assert talk.link.broker_end.ended


def test_error_that_is_not_fatal_leaves_the_connection_open() -> None:
    talk = Talk()
    with talk.faults.error("E_FIN_FAILED", command="FIN", description="by a test"):
        assert talk.send(FIN + NOP) == (NOP, encode_error(FinishFailed("by a test")))
    assert talk.send(FIN) == (FIN, b"")
    assert talk.recorded() == [("FIN", "error"), ("NOP", ""), ("ERROR", "error"), ("FIN", "")]


def test_error_does_not_divide_a_frame() -> None:
    talk = Talk()
    assert talk.receive(MESSAGE[:20]) == (b"", MESSAGE[:20])
    talk.faults.error("E_PUB_FAILED", command="PUB")
    assert talk.send(PUB) == (b"", b"")
    assert talk.receive(MESSAGE[20:] + HEARTBEAT_FRAME) == (b"", MESSAGE[20:] + E_PUB)


def test_answer_of_one_command_is_dropped() -> None:
    talk = Talk()
    talk.faults.drop_answer(command="PUB", after=1, times=1)
    assert talk.send(PUB, PUB, PUB) == (PUB * 3, b"")
    invalid = encode_error(PublishFailed("2"))
    assert talk.receive(OK_FRAME + E_FIN + invalid + MESSAGE + OK_FRAME) == (b"", OK_FRAME + E_FIN + MESSAGE + OK_FRAME)
    assert ("ERROR", "drop_answer") in talk.recorded()


def test_message_is_delivered_twice() -> None:
    talk = Talk()
    talk.faults.duplicate(topic="t", channel="c", times=1)
    assert talk.receive(MESSAGE + MESSAGE) == (b"", MESSAGE * 3)
    assert talk.recorded() == [("MESSAGE", ""), ("MESSAGE", "duplicate"), ("MESSAGE", "")]


def test_message_is_delivered_again_early_between_two_frames() -> None:
    talk = Talk()
    talk.faults.redeliver(1, times=1)
    assert talk.receive(MESSAGE) == (b"", MESSAGE)
    assert talk.link.next_deadline() == SECOND + 1
    talk.receive(MESSAGE[:20])
    assert talk.wait_until(SECOND + 1) == (b"", b"")
    again = encode_message(1, 2, b"0" * 16, b"body")
    assert talk.receive(MESSAGE[20:] + OK_FRAME) == (b"", MESSAGE[20:] + again + OK_FRAME)


def test_bytes_of_an_item_without_a_fault_pass_before_it_is_complete() -> None:
    talk = Talk()
    talk.faults.drop(command="FIN")
    talk.faults.delay(1, command="PUB", topic="u")
    head = b"PUB t\n\0\0\xff\xff"
    assert talk.send(head) == (head, b"")
    assert talk.send(b"body") == (b"body", b"")


def test_rule_applies_from_the_next_item_on() -> None:
    talk = Talk()
    assert talk.send(PUB[:-1]) == (PUB[:-1], b"")
    talk.faults.drop(command="PUB")
    assert talk.send(PUB[-1:] + PUB) == (PUB[-1:], b"")


def test_bytes_after_the_upgrade_are_not_divided() -> None:
    talk = Talk()
    answer = encode_response(b'{"tls_v1": true, "max_rdy_count": 5}')
    talk.faults.drop(command="OK")
    assert talk.receive(answer + OK_FRAME) == (b"", answer + OK_FRAME)
    assert talk.send(PUB) == (PUB, b"")
    assert [name for name, _ in talk.recorded()] == ["RESPONSE", "BYTES", "BYTES"]
    talk.faults.drop()
    assert talk.send(PUB) == (b"", b"")


def test_bytes_that_came_before_the_upgrade_pass() -> None:
    talk = Talk()
    talk.faults.drop(command="PUB")
    assert talk.send(PUB[:8]) == (b"", b"")
    assert talk.receive(encode_response(b'{"snappy": true}'))[0] == PUB[:8]


def test_heartbeat_that_is_dropped_has_no_answer() -> None:
    talk = Talk()
    talk.send(NOP)
    talk.faults.drop(command="HEARTBEAT", times=1)
    talk.receive(HEARTBEAT_FRAME)
    assert not talk.link.owes_answer
    talk.receive(HEARTBEAT_FRAME)
    assert talk.link.owes_answer


COMMANDS = [NOP, PUB, FIN, encode_publish(b"u", b"\n" * 30), b"CLS\n", b"XYZ \r\n", b"\n"]
FRAMES = [OK_FRAME, HEARTBEAT_FRAME, MESSAGE, CLOSE_WAIT_FRAME, E_PUB, E_FIN, encode_response(b"{}")]

# Rules that apply to none of COMMANDS and FRAMES, or that change only when and in which pieces they pass.
HARMLESS: list[Callable[[Faults], object]] = [
    lambda faults: faults.drop(command="RDY"),
    lambda faults: faults.drop(command="PUB", topic="other"),
    lambda faults: faults.reset(client="other"),
    lambda faults: faults.error("E_INVALID", command="DPUB"),
    lambda faults: faults.drop_answer(command="SUB"),
    lambda faults: faults.duplicate(channel="other"),
    lambda faults: faults.delay(0.1, times=1),
    lambda faults: faults.delay(0.2, command="MESSAGE", probability=0.5),
    lambda faults: faults.slices(7, after=1),
    lambda faults: faults.bandwidth(1000, command="PUB"),
]


@given(st.data())
def test_bytes_that_no_rule_changes_arrive_whole_and_in_order(data: st.DataObject) -> None:
    talk = Talk()
    sent = b"".join(data.draw(st.lists(st.sampled_from(COMMANDS), max_size=8)))
    received = b"".join(data.draw(st.lists(st.sampled_from(FRAMES), max_size=8)))
    pieces = [(talk.link.client_end, piece) for piece in cut(data, sent)]
    pieces += [(talk.link.broker_end, piece) for piece in cut(data, received)]
    order = data.draw(st.permutations(range(len(pieces)))) if len(pieces) < 8 else range(len(pieces))
    mixed = in_order(pieces, order)
    at_broker, at_client = b"", b""
    for end, piece in mixed:
        if data.draw(st.booleans()):
            with suppress(OptionError):  # one of the same kind is there already
                data.draw(st.sampled_from(HARMLESS))(talk.faults)
        elif data.draw(st.booleans()):
            talk.faults.clear()
        end.receive_data(piece, talk.now_ns)
        output = talk.wait_until(talk.now_ns + data.draw(st.sampled_from([0, SECOND // 20])))
        at_broker, at_client = at_broker + output[0], at_client + output[1]
    talk.link.client_end.receive_eof(talk.now_ns)
    talk.link.broker_end.receive_eof(talk.now_ns)
    output = talk.output()
    while any(output) or talk.link.next_deadline() is not None:
        at_broker, at_client = at_broker + output[0], at_client + output[1]
        output = talk.wait_until(max(talk.link.next_deadline() or 0, talk.now_ns))
    assert (at_broker, at_client) == (sent, received)
    assert talk.link.client_end.ended
    assert talk.link.broker_end.ended


def cut(data: st.DataObject, stream: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(stream) - 1, 1)), max_size=5)))
    return [piece for piece in (stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])) if piece]


def in_order(pieces: list[tuple[LinkEnd, bytes]], order: Iterable[int]) -> list[tuple[LinkEnd, bytes]]:
    """Mix the pieces of both ends, but leave those of each end in order."""
    by_end = {end: iter([piece for at, piece in pieces if at is end]) for end, _ in pieces}
    return [(pieces[number][0], next(by_end[pieces[number][0]])) for number in order]


ANY: list[Callable[[Faults], object]] = [
    *HARMLESS,
    lambda faults: faults.drop(probability=0.3),
    lambda faults: faults.duplicate(probability=0.5),
    lambda faults: faults.redeliver(0.1, after=1),
    lambda faults: faults.error("E_FIN_FAILED", command="FIN"),
    lambda faults: faults.error("E_PUB_FAILED", command="PUB", after=1),
    lambda faults: faults.drop_answer(probability=0.5),
    lambda faults: faults.garbage(b"\xff\0", probability=0.2),
    lambda faults: faults.wrong_length(-1, probability=0.2),
    lambda faults: faults.wrong_type(7, probability=0.2),
    lambda faults: faults.oversize(50, after=3),
    lambda faults: faults.close_at(4, frame=3),
    lambda faults: faults.half_open("to_client", after=4),
    lambda faults: faults.reset(after=6),
]


@given(
    st.lists(st.sampled_from(ANY), max_size=4),
    st.lists(st.tuples(st.booleans(), st.one_of(st.sampled_from(COMMANDS + FRAMES), st.binary())), max_size=12),
)
def test_same_seed_gives_the_same_bytes_and_nothing_fails(
    rules: list[Callable[[Faults], object]], pieces: list[tuple[bool, bytes]]
) -> None:
    def run() -> list[tuple[bytes, bytes]]:
        talk = Talk(seed=5)
        for rule in rules:
            with suppress(OptionError):
                rule(talk.faults)
        outputs = [talk.send(piece) if is_sent else talk.receive(piece) for is_sent, piece in pieces]
        talk.link.client_end.receive_eof(1)
        talk.link.broker_end.receive_eof(1)
        while (due_ns := talk.link.next_deadline()) is not None:
            outputs.append(talk.wait_until(max(due_ns, talk.now_ns)))
        return outputs

    assert run() == run()
