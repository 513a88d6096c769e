from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.session.heartbeat import TICK_NS, Heartbeat
from nsqkit.wire.identify import NS_PER_MS
from tests.pairs import NS_PER_S, DrivenBroker

SECOND = NS_PER_S


def heartbeat(interval: int = 10) -> Heartbeat:
    return Heartbeat(interval * SECOND, 0)


class TestSilence:
    def test_client_times_out_after_two_intervals(self):
        it = heartbeat()
        it.received_ns = 1
        assert it.timeout_reason(20 * SECOND, has_output=False) is None
        assert (
            it.timeout_reason(20 * SECOND + 1, has_output=False) == "no command for two heartbeat intervals of 10000 ms"
        )

    def test_without_an_interval_there_is_no_timeout(self):
        it = heartbeat()
        it.limit_silence(0)
        assert it.timeout_reason(1000 * SECOND, has_output=False) is None


class TestHeartbeats:
    def test_heartbeat_is_due_after_each_interval(self):
        it = heartbeat()
        assert [it.advance(second * SECOND) for second in (9, 10, 11, 19, 20)] == [
            False,
            True,
            False,
            False,
            True,
        ]

    def test_missed_heartbeats_count_as_one(self):
        it = heartbeat()
        assert it.advance(35 * SECOND)
        assert not it.advance(44 * SECOND)
        assert it.advance(45 * SECOND)

    @given(start_ns=st.integers(0, 2 * SECOND), interval_ms=st.integers(1000, 60_000))
    def test_heartbeat_is_due_at_a_shared_tick_and_never_late(self, start_ns, interval_ms):
        interval_ns = interval_ms * NS_PER_MS
        it = Heartbeat(interval_ns, start_ns)
        before_ns = start_ns
        for _ in range(5):
            beat_ns = it.next_deadline(before_ns)
            assert beat_ns is not None
            assert beat_ns % TICK_NS == 0
            assert 0 <= before_ns + interval_ns - beat_ns < TICK_NS
            assert not it.advance(beat_ns - 1)
            assert it.advance(beat_ns)
            it.received_ns = before_ns = beat_ns

    def test_without_an_interval_there_are_no_heartbeats(self):
        it = heartbeat(0)
        assert not it.advance(1000 * SECOND)
        assert it.next_deadline(0) is None


class TestTaking:
    def test_unread_heartbeat_ends_the_session_after_an_interval(self):
        it = heartbeat()
        it.advance(10 * SECOND)
        it.received_ns = 19 * SECOND
        assert it.timeout_reason(20 * SECOND - 1, has_output=True) is None
        assert it.timeout_reason(20 * SECOND, has_output=True) == "took nothing for a heartbeat interval of 10000 ms"

    def test_any_sent_bytes_count_as_read(self):
        it = heartbeat()
        it.advance(10 * SECOND)
        it.received_ns = 19 * SECOND
        it.has_sent = True
        assert it.timeout_reason(20 * SECOND, has_output=True) is None

    def test_client_without_output_does_not_time_out(self):
        it = heartbeat()
        it.advance(10 * SECOND)
        it.received_ns = 19 * SECOND
        assert it.timeout_reason(20 * SECOND, has_output=False) is None


def test_next_deadline_is_a_heartbeat_or_the_limit_of_silence():
    it = heartbeat()
    assert it.next_deadline(13 * SECOND) == 10 * SECOND
    it.advance(10 * SECOND)
    it.limit_silence(6 * SECOND)
    assert it.next_deadline(13 * SECOND) == 12 * SECOND
    it.start(0, 0)
    assert it.next_deadline(13 * SECOND) == 12 * SECOND


def test_handshake_suspends_the_other_limits():
    it = heartbeat()
    assert it.start_handshake(9 * SECOND) == 14 * SECOND
    assert it.advance(10 * SECOND)
    assert it.continue_handshake(13 * SECOND)
    assert it.next_deadline(13 * SECOND) == 14 * SECOND
    assert not it.continue_handshake(14 * SECOND)
    assert it.next_deadline(14 * SECOND) == 20 * SECOND
    assert it.timeout_reason(20 * SECOND, has_output=True) is None


def test_client_that_reads_nothing_is_disconnected_though_it_sends():
    driven = DrivenBroker()
    talker, reader = (driven.client(heartbeat_interval=1000) for _ in range(2))
    talker.reads = False
    for _ in range(4):
        driven.advance(0.6)
        for client in (talker, reader):
            client.feed(b"NOP\n")
    assert (talker.is_alive, reader.is_alive) == (False, True)
    assert talker.end_reason == "took nothing for a heartbeat interval of 1000 ms"


def test_heartbeats_of_many_idle_clients_share_a_deadline():
    driven = DrivenBroker()
    clients = []
    for _ in range(10):
        driven.jump(0.001)
        clients.append(driven.client(heartbeat_interval=1000))
    due_ns = driven.broker.next_deadline()
    assert due_ns is not None
    driven.broker.handle_deadline(due_ns)
    assert [client.answers() for client in clients] == [[b"_heartbeat_"]] * 10
