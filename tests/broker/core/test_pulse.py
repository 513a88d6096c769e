from __future__ import annotations

from nsqkit.broker.core.pulse import Pulse
from tests.pairs import NS_PER_S, DrivenBroker

SECOND = NS_PER_S


def pulse(interval: int = 10) -> Pulse:
    return Pulse(interval * SECOND, 0)


class TestSilence:
    def test_two_intervals_of_it_are_the_end(self):
        it = pulse()
        it.heard_ns = 1
        assert it.why_gone(20 * SECOND, has_output=False) is None
        assert (
            it.why_gone(20 * SECOND + 1, has_output=False)
            == "no command for two heartbeat intervals of 10000 ms"
        )

    def test_without_an_interval_it_may_last(self):
        it = pulse()
        it.allow_silence(0)
        assert it.why_gone(1000 * SECOND, has_output=False) is None


class TestHeartbeats:
    def test_they_come_with_the_interval(self):
        it = pulse()
        assert [it.beats(second * SECOND) for second in (9, 10, 11, 19, 20)] == [
            False,
            True,
            False,
            False,
            True,
        ]

    def test_those_that_were_missed_are_one(self):
        it = pulse()
        assert it.beats(35 * SECOND)
        assert not it.beats(39 * SECOND)
        assert it.beats(40 * SECOND)

    def test_without_an_interval_there_are_none(self):
        it = pulse(0)
        assert not it.beats(1000 * SECOND)
        assert it.next_deadline(0) is None


class TestTaking:
    def test_a_heartbeat_that_nobody_takes_for_an_interval_is_the_end(self):
        it = pulse()
        it.beats(10 * SECOND)
        it.heard_ns = 19 * SECOND
        assert it.why_gone(20 * SECOND - 1, has_output=True) is None
        assert (
            it.why_gone(20 * SECOND, has_output=True) == "took nothing for a heartbeat interval of 10000 ms"
        )

    def test_whatever_is_taken_is_a_sign_of_life(self):
        it = pulse()
        it.beats(10 * SECOND)
        it.heard_ns = 19 * SECOND
        it.taken = True
        assert it.why_gone(20 * SECOND, has_output=True) is None

    def test_with_nothing_to_take_it_is_no_sign_of_death(self):
        it = pulse()
        it.beats(10 * SECOND)
        it.heard_ns = 19 * SECOND
        assert it.why_gone(20 * SECOND, has_output=False) is None


def test_the_next_deadline_is_a_heartbeat_or_the_end_of_patience():
    it = pulse()
    assert it.next_deadline(13 * SECOND) == 10 * SECOND
    it.beats(10 * SECOND)
    it.allow_silence(6 * SECOND)
    assert it.next_deadline(13 * SECOND) == 12 * SECOND
    it.begin(0, 0)
    assert it.next_deadline(13 * SECOND) == 12 * SECOND


def test_while_hands_are_shaken_nothing_else_is_asked_for():
    it = pulse()
    assert it.shake_hands(9 * SECOND) == 14 * SECOND
    assert it.beats(10 * SECOND)
    assert not it.handshake_is_over(13 * SECOND)
    assert it.next_deadline(13 * SECOND) == 14 * SECOND
    assert it.handshake_is_over(14 * SECOND)
    assert it.next_deadline(14 * SECOND) == 20 * SECOND
    assert it.why_gone(20 * SECOND, has_output=True) is None


def test_a_client_that_takes_nothing_is_left_though_it_talks():
    driven = DrivenBroker()
    talker, reader = (driven.client(heartbeat_interval=1000) for _ in range(2))
    talker.reads = False
    for _ in range(4):
        driven.advance(0.6)
        for client in (talker, reader):
            client.feed(b"NOP\n")
    assert (talker.is_alive, reader.is_alive) == (False, True)
    assert talker.session.end_reason == "took nothing for a heartbeat interval of 1000 ms"
