from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.spark.chunker import Bounds, Chunker, StopReason


@attrs.define(eq=False)
class Delivered:
    body: bytes = b"x"
    is_answered: bool = False


def make_chunker(**bounds) -> Chunker[Delivered]:
    return Chunker(Bounds(**{"chunk_messages": 10, "chunk_bytes": 1000, "linger_ns": 50, **bounds}), 100)


def messages(count: int, body: bytes = b"x") -> list[Delivered]:
    return [Delivered(body) for _ in range(count)]


# ---- when a chunk is due -------------------------------------------------------------------------------------------


def test_a_chunk_is_due_when_it_is_full():
    chunker = make_chunker()
    chunker.receive(messages(9), 100)
    assert chunker.take(100) == []
    chunker.receive(messages(3), 101)
    assert len(chunker.take(101)) == 10
    assert chunker.take(101) == []
    assert len(chunker.pending) == 2


def test_a_chunk_is_due_when_its_first_message_has_lingered():
    chunker = make_chunker()
    chunker.receive(messages(1), 100)
    chunker.receive(messages(1), 149)
    assert chunker.next_deadline() == 150
    assert chunker.take(149) == []
    assert len(chunker.take(150)) == 2


def test_messages_beyond_a_chunk_linger_from_then_on():
    chunker = make_chunker()
    chunker.receive(messages(11), 100)
    assert len(chunker.take(120)) == 10
    assert chunker.next_deadline() == 170
    assert chunker.take(169) == []
    assert len(chunker.take(170)) == 1


def test_a_steady_stream_does_not_delay_a_chunk():
    chunker = make_chunker()
    for now_ns in range(100, 150, 10):
        chunker.receive(messages(1), now_ns)
        assert chunker.take(now_ns) == []
    chunker.receive(messages(1), 150)
    assert len(chunker.take(150)) == 6


def test_a_chunk_is_due_at_its_bytes_and_ends_with_the_message_that_exceeds_them():
    chunker = make_chunker()
    chunker.receive(messages(4, b"x" * 400), 100)
    assert len(chunker.take(100)) == 3
    assert chunker.take(100) == []


def test_an_answered_message_is_left_out():
    chunker = make_chunker(max_messages=12)
    lost, kept = messages(1)[0], messages(10)
    chunker.receive([lost, *kept], 100)
    lost.is_answered = True
    assert chunker.take(100) == kept
    assert chunker.taken_count == 10


# ---- when a partition stops ------------------------------------------------------------------------------------------


def test_exactly_max_messages_are_taken():
    chunker = make_chunker(max_messages=12)
    chunker.receive(messages(15), 100)
    assert len(chunker.take(100)) == 10
    assert chunker.stop_reason(100) is None
    assert len(chunker.take(100)) == 2
    assert chunker.stop_reason(100) is StopReason.COUNT
    assert len(chunker.pending) == 3


def test_a_count_of_zero_takes_nothing():
    chunker = make_chunker(max_messages=0)
    assert chunker.stop_reason(100) is StopReason.COUNT


def test_a_partition_stops_after_a_time_without_messages():
    chunker = make_chunker(empty_for_ns=1000)
    assert chunker.next_deadline() == 1100
    assert chunker.stop_reason(1099) is None
    assert chunker.stop_reason(1100) is StopReason.EMPTY


def test_quiet_is_measured_from_restart_quiet():
    chunker = make_chunker(empty_for_ns=1000)
    chunker.receive(messages(10), 500)
    assert len(chunker.take(500)) == 10
    chunker.restart_quiet(5000)
    assert chunker.stop_reason(5999) is None
    assert chunker.next_deadline() == 6000
    assert chunker.stop_reason(6000) is StopReason.EMPTY


def test_pending_messages_keep_a_partition_from_being_empty():
    chunker = make_chunker(empty_for_ns=10)
    chunker.receive(messages(1), 100)
    assert chunker.stop_reason(149) is None


def test_one_more_chunk_is_taken_after_the_deadline():
    chunker = make_chunker(deadline_ns=1000, linger_ns=10_000)
    chunker.receive(messages(13), 1050)
    assert len(chunker.take(1060)) == 10
    assert chunker.next_deadline() == 1100
    assert chunker.stop_reason(1099) is None
    assert len(chunker.take(1100)) == 3
    chunker.receive(messages(20), 1110)
    assert chunker.take(1120) == []
    assert chunker.stop_reason(1120) is StopReason.DEADLINE


def test_an_empty_partition_stops_at_the_deadline():
    chunker = make_chunker(deadline_ns=1000)
    assert chunker.stop_reason(1099) is None
    assert chunker.stop_reason(1100) is StopReason.DEADLINE


def test_a_partition_stops_at_its_bytes_with_the_message_that_exceeds_them():
    chunker = make_chunker(max_bytes=1500)
    chunker.receive(messages(9, b"x" * 400), 100)
    assert len(chunker.take(100)) == 3
    assert chunker.stop_reason(100) is None
    assert len(chunker.take(100)) == 1
    assert chunker.taken_bytes == 1600
    assert chunker.stop_reason(100) is StopReason.BYTES


def test_a_batch_of_a_stream_stops_after_a_chunk_that_lingered():
    chunker = make_chunker(stops_after_linger=True)
    chunker.receive(messages(13), 100)
    assert len(chunker.take(100)) == 10
    assert chunker.stop_reason(100) is None
    assert len(chunker.take(150)) == 3
    assert chunker.stop_reason(150) is StopReason.LINGER
    chunker.receive(messages(20), 150)
    assert chunker.take(150) == []


def test_a_pause_between_messages_does_not_delay_the_end_of_a_batch():
    """Pitfall 18: a steady trickle has no pause, and a batch that waited for one would take its longest time."""
    chunker = make_chunker(stops_after_linger=True, empty_for_ns=50, chunk_messages=1000)
    for now_ns in range(100, 150, 10):
        chunker.receive(messages(1), now_ns)
        assert chunker.take(now_ns) == []
    assert len(chunker.take(150)) == 5
    assert chunker.stop_reason(150) is StopReason.LINGER


def test_a_chunk_that_waited_while_another_was_processed_ends_no_batch():
    """While a chunk is processed, nsqd may deliver nothing although it has more."""
    chunker = make_chunker(stops_after_linger=True)
    chunker.receive(messages(13), 100)
    assert len(chunker.take(100)) == 10
    chunker.restart_quiet(500)
    assert len(chunker.take(510)) == 3
    assert chunker.stop_reason(510) is None
    chunker.receive(messages(2), 520)
    assert len(chunker.take(570)) == 2
    assert chunker.stop_reason(570) is StopReason.LINGER


def test_a_chunk_is_due_when_nsqd_delivers_no_more():
    chunker = make_chunker(stops_after_linger=True)
    chunker.receive(messages(3), 100)
    assert chunker.take(100) == []
    assert len(chunker.take(100, is_starved=True)) == 3
    assert chunker.stop_reason(200) is None


def test_a_backlog_that_does_not_fill_a_chunk_in_time_ends_no_batch():
    """A chunk may be larger than nsqd can deliver within linger; to end there would requeue everything in flight."""
    second = 1_000_000_000
    chunker = make_chunker(stops_after_linger=True, linger_ns=second // 5, chunk_messages=10_000, chunk_bytes=1 << 30)
    chunker.receive(messages(1000), 100)
    assert len(chunker.take(100 + second // 5)) == 1000
    assert chunker.stop_reason(100 + second // 5) is None
    chunker.receive(messages(999), second)
    assert len(chunker.take(second + second // 5)) == 999
    assert chunker.stop_reason(second + second // 5) is StopReason.LINGER


# ---- in general ----------------------------------------------------------------------------------------------------


@given(
    chunk_messages=st.integers(1, 5),
    chunk_bytes=st.integers(1, 20),
    linger_ns=st.integers(0, 20),
    max_messages=st.none() | st.integers(0, 30),
    max_bytes=st.none() | st.integers(1, 60),
    stops_after_linger=st.booleans(),
    empty_for_ns=st.none() | st.integers(1, 50),
    deadline_ns=st.none() | st.integers(1, 200),
    steps=st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 9), max_size=8)), max_size=30),
)
def test_no_message_is_lost_or_doubled_and_deadlines_are_ahead(steps: list, **bounds):
    chunker = make_chunker(**bounds)
    now_ns, received, taken, last_counts = 100, [], [], 0
    for wait_ns, sizes in steps:
        now_ns += wait_ns
        arrived = [Delivered(b"x" * size) for size in sizes]
        received += arrived
        if arrived:
            chunker.receive(arrived, now_ns)
        while chunk := chunker.take(now_ns):
            assert len(chunk) <= bounds["chunk_messages"]
            assert sum(len(message.body) for message in chunk[:-1]) < bounds["chunk_bytes"]
            taken += chunk
            if bounds["deadline_ns"] is not None and now_ns >= 100 + bounds["deadline_ns"]:
                last_counts += 1
        assert taken + list(chunker.pending) == received
        if chunker.stop_reason(now_ns) is not None:
            break
        # Otherwise the deadline is in the future, so there is no busy loop.
        deadline_ns = chunker.next_deadline()
        assert deadline_ns is None or deadline_ns > now_ns
    # The last message may exceed the bytes.
    assert bounds["max_bytes"] is None or sum(len(message.body) for message in taken[:-1]) < bounds["max_bytes"]
    assert (chunker.taken_count, chunker.taken_bytes) == (len(taken), sum(len(message.body) for message in taken))
    assert bounds["max_messages"] is None or len(taken) <= bounds["max_messages"]
    assert last_counts <= 1
