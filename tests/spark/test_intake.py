from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.spark.intake import Bounds, Intake, StopReason


@attrs.define(eq=False)
class Delivered:
    body: bytes = b"x"
    is_answered: bool = False


def make_intake(**bounds) -> Intake[Delivered]:
    return Intake(Bounds(**{"chunk_messages": 10, "chunk_bytes": 1000, "linger_ns": 50, **bounds}), 100)


def messages(count: int, body: bytes = b"x") -> list[Delivered]:
    return [Delivered(body) for _ in range(count)]


# ---- when a chunk is due -------------------------------------------------------------------------------------------


def test_a_chunk_is_due_when_it_is_full():
    intake = make_intake()
    intake.receive(messages(9), 100)
    assert intake.take(100) == []
    intake.receive(messages(3), 101)
    assert len(intake.take(101)) == 10
    assert intake.take(101) == []
    assert len(intake.pending) == 2


def test_a_chunk_is_due_when_its_first_message_has_lingered():
    intake = make_intake()
    intake.receive(messages(1), 100)
    intake.receive(messages(1), 149)
    assert intake.next_deadline() == 150
    assert intake.take(149) == []
    assert len(intake.take(150)) == 2


def test_what_a_chunk_leaves_behind_lingers_anew():
    intake = make_intake()
    intake.receive(messages(11), 100)
    assert len(intake.take(120)) == 10
    assert intake.next_deadline() == 170
    assert intake.take(169) == []
    assert len(intake.take(170)) == 1


def test_a_steady_trickle_does_not_put_a_chunk_off():
    intake = make_intake()
    for now_ns in range(100, 150, 10):
        intake.receive(messages(1), now_ns)
        assert intake.take(now_ns) == []
    intake.receive(messages(1), 150)
    assert len(intake.take(150)) == 6


def test_a_chunk_is_due_at_so_many_bytes_and_ends_with_the_message_that_passes_them():
    intake = make_intake()
    intake.receive(messages(4, b"x" * 400), 100)
    assert len(intake.take(100)) == 3
    assert intake.take(100) == []


def test_a_message_that_is_not_ours_any_more_is_left_out():
    intake = make_intake(max_messages=12)
    lost, kept = messages(1)[0], messages(10)
    intake.receive([lost, *kept], 100)
    lost.is_answered = True
    assert intake.take(100) == kept
    assert intake.taken_count == 10


# ---- when it is enough ---------------------------------------------------------------------------------------------


def test_the_count_is_met_exactly():
    intake = make_intake(max_messages=12)
    intake.receive(messages(15), 100)
    assert len(intake.take(100)) == 10
    assert intake.stop_reason(100) is None
    assert len(intake.take(100)) == 2
    assert intake.stop_reason(100) is StopReason.COUNT
    assert len(intake.pending) == 3


def test_a_count_of_zero_takes_nothing():
    intake = make_intake(max_messages=0)
    assert intake.stop_reason(100) is StopReason.COUNT


def test_quiet_ends_it():
    intake = make_intake(empty_for_ns=1000)
    assert intake.next_deadline() == 1100
    assert intake.stop_reason(1099) is None
    assert intake.stop_reason(1100) is StopReason.EMPTY


def test_quiet_counts_from_the_moment_that_messages_can_come():
    intake = make_intake(empty_for_ns=1000)
    intake.receive(messages(10), 500)
    assert len(intake.take(500)) == 10
    intake.listen(5000)
    assert intake.stop_reason(5999) is None
    assert intake.next_deadline() == 6000
    assert intake.stop_reason(6000) is StopReason.EMPTY


def test_pending_messages_are_not_quiet():
    intake = make_intake(empty_for_ns=10)
    intake.receive(messages(1), 100)
    assert intake.stop_reason(149) is None


def test_the_deadline_lets_one_more_chunk_through():
    intake = make_intake(deadline_ns=1000, linger_ns=10_000)
    intake.receive(messages(13), 1050)
    assert len(intake.take(1060)) == 10
    assert intake.next_deadline() == 1100
    assert intake.stop_reason(1099) is None
    assert len(intake.take(1100)) == 3
    intake.receive(messages(20), 1110)
    assert intake.take(1120) == []
    assert intake.stop_reason(1120) is StopReason.DEADLINE


def test_the_deadline_ends_what_is_empty():
    intake = make_intake(deadline_ns=1000)
    assert intake.stop_reason(1099) is None
    assert intake.stop_reason(1100) is StopReason.DEADLINE


# ---- in general ----------------------------------------------------------------------------------------------------


@given(
    chunk_messages=st.integers(1, 5),
    chunk_bytes=st.integers(1, 20),
    linger_ns=st.integers(0, 20),
    max_messages=st.none() | st.integers(0, 30),
    empty_for_ns=st.none() | st.integers(1, 50),
    deadline_ns=st.none() | st.integers(1, 200),
    steps=st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 9), max_size=8)), max_size=30),
)
def test_nothing_is_lost_doubled_or_waited_for_in_vain(steps: list, **bounds):
    intake = make_intake(**bounds)
    now_ns, received, taken, last_counts = 100, [], [], 0
    for wait_ns, sizes in steps:
        now_ns += wait_ns
        arrived = [Delivered(b"x" * size) for size in sizes]
        received += arrived
        if arrived:
            intake.receive(arrived, now_ns)
        while chunk := intake.take(now_ns):
            assert len(chunk) <= bounds["chunk_messages"]
            assert sum(len(message.body) for message in chunk[:-1]) < bounds["chunk_bytes"]
            taken += chunk
            if bounds["deadline_ns"] is not None and now_ns >= 100 + bounds["deadline_ns"]:
                last_counts += 1
        assert taken + list(intake.pending) == received
        if intake.stop_reason(now_ns) is not None:
            break
        # Otherwise it is waited for something that lies ahead: no busy loop.
        deadline_ns = intake.next_deadline()
        assert deadline_ns is None or deadline_ns > now_ns
    assert bounds["max_messages"] is None or len(taken) <= bounds["max_messages"]
    assert last_counts <= 1
