from __future__ import annotations

from nsqkit.producer.stats import NsqdStats, ProducerStats


def nsqd(is_connected: bool, message_count: int, refused_count: int, lost_count: int) -> NsqdStats:
    return NsqdStats(
        address="nsqd:4150",
        is_connected=is_connected,
        message_count=message_count,
        refused_count=refused_count,
        lost_count=lost_count,
        outstanding_count=0,
        error=None,
    )


def stats(*nsqds: NsqdStats) -> ProducerStats:
    return ProducerStats(nsqds=nsqds, outstanding_bytes=0, waiting_count=0)


def test_counts_of_a_producer_are_the_sums_of_its_nsqds():
    both = stats(nsqd(False, 10, 2, 1), nsqd(True, 100, 20, 3))
    assert both.is_connected
    assert (both.message_count, both.refused_count, both.lost_count) == (110, 22, 4)


def test_producer_without_a_connection_is_not_connected():
    assert not stats(nsqd(False, 1, 0, 0)).is_connected
    assert not stats().is_connected
