"""When a run waits for messages in flight, what it runs again, and what it reports; without nsqds."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import pytest

from nsqkit.clock import NS_PER_S
from nsqkit.spark.bounded_run import RunStats, run_bounded
from nsqkit.spark.chunker import StopReason
from nsqkit.spark.discovery import Backlog
from nsqkit.spark.drainer import PartitionStats
from nsqkit.spark.options import ConsumerSpec


def backlog(depth: int = 0, in_flight: int = 0, deferred: int = 0) -> Backlog:
    return Backlog(depth, in_flight, deferred, finished_count=0)


def partition_stats(count: int, stop_reason: StopReason = StopReason.EMPTY) -> PartitionStats:
    return PartitionStats(
        partition=0,
        received_count=count,
        finished_count=count,
        finish_failed_count=0,
        requeued_count=0,
        touched_count=0,
        duplicate_count=0,
        chunk_count=1,
        byte_count=10 * count,
        seconds=1.0,
        stop_reason=stop_reason,
    )


class Job:
    """A channel whose messages change with time, and a job that takes those that wait.

    Args:
        states: the messages that are left from a time on, by seconds.
        stop_reason: why each run ends.
        seconds: the time between the last message that a run takes and its end.
    """

    def __init__(
        self, states: dict[float, Backlog | None], stop_reason: StopReason = StopReason.EMPTY, seconds: float = 0
    ) -> None:
        self.states = states
        self.stop_reason = stop_reason
        self.seconds = seconds
        self.now = 0.0
        self.run_at: list[float] = []
        self.specs: list[ConsumerSpec] = []

    def find(self) -> Backlog | None:
        return self.states[max(at for at in self.states if at <= self.now)]

    def run(self, spec: ConsumerSpec) -> list[PartitionStats]:
        left = self.find()
        self.run_at.append(self.now)
        self.specs.append(spec)
        if left is not None:
            self.states[self.now] = attrs.evolve(left, depth=0)
        self.now += self.seconds
        return [partition_stats(left.depth if left else 7, self.stop_reason)]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def start(self, **options: Any) -> RunStats:
        options = {"msg_timeout": 60.0, **options}
        spec = ConsumerSpec(topics="t", channel="c", nsqd_tcp_addresses=["127.0.0.1:4150"], **options)
        return run_bounded(spec, self.run, self.find, now_ns=lambda: round(self.now * NS_PER_S), sleep=self.sleep)


def test_messages_in_flight_are_reported_and_not_awaited(caplog: pytest.LogCaptureFixture):
    job = Job({0: backlog(depth=50, in_flight=1250, deferred=3)})
    stats = job.start()
    assert stats.left == backlog(in_flight=1250, deferred=3)
    assert stats.finished_count == 50
    assert job.now == 0
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "[t/c] a run finished 50 messages; left depth 0, in flight 1250, deferred 3"


def test_a_run_that_leaves_nothing_warns_of_nothing(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "nsqkit.spark")
    Job({0: backlog(depth=1)}).start()
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_a_run_that_cannot_know_what_it_leaves_says_so(caplog: pytest.LogCaptureFixture):
    job = Job({0: None})
    assert job.start(wait_in_flight=True).left is None
    assert job.run_at == [0]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith("; the messages that it left are not known without nsqd_http_addresses")


def test_messages_that_come_back_are_consumed():
    job = Job({0: backlog(depth=50, in_flight=1250), 30: backlog(depth=1000, in_flight=250), 45: backlog(depth=1250)})
    stats = job.start(wait_in_flight=True)
    assert [round(at) for at in job.run_at] == [0, 45]
    assert stats.finished_count == 1300
    assert stats.left == backlog()


def test_messages_that_are_finished_elsewhere_end_the_wait():
    job = Job({0: backlog(in_flight=5), 10: backlog()})
    assert job.start(wait_in_flight=True).left == backlog()
    assert job.run_at == [0]
    assert round(job.now) == 10


def test_the_wait_ends_after_a_message_timeout():
    job = Job({0: backlog(in_flight=5)})
    assert job.start(wait_in_flight=True, msg_timeout=2.0).left == backlog(in_flight=5)
    assert 2.0 <= job.now <= 3.5


def test_messages_that_come_back_before_the_first_look_are_consumed():
    job = Job({0: backlog(depth=10, in_flight=20), 0.9: backlog(depth=20)}, seconds=1)
    stats = job.start(wait_in_flight=True)
    assert job.run_at == [0, 1]
    assert stats.finished_count == 30
    assert stats.left == backlog()


def test_messages_of_a_live_publisher_prolong_a_run_once():
    job = Job({0: backlog(), 0.9: backlog(depth=1), 1.9: backlog(depth=1)}, seconds=1)
    assert job.start(wait_in_flight=True).left == backlog(depth=1)
    assert job.run_at == [0, 1]


@pytest.mark.parametrize("reason", [StopReason.COUNT, StopReason.DEADLINE])
def test_a_run_that_reached_a_limit_does_not_wait(reason: StopReason):
    job = Job({0: backlog(in_flight=5)}, reason)
    assert job.start(wait_in_flight=True, max_messages=10).left == backlog(in_flight=5)
    assert job.now == 0


def test_the_second_run_has_the_rest_of_the_limits():
    job = Job({0: backlog(depth=30, in_flight=5), 1: backlog(depth=5)})
    job.start(wait_in_flight=True, max_messages=100, max_bytes=1000)
    assert [(spec.max_messages, spec.max_bytes) for spec in job.specs] == [(100, 1000), (70, 700)]
