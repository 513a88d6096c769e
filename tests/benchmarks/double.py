"""Measures the test double: a test with a new broker, an hour in between, the journal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

import attrs

from nsqkit import BlockingConsumer, BlockingProducer
from nsqkit.testing.servers import NsqdServer
from tests.benchmarks import raw_client
from tests.benchmarks.harness import Bench, BrokerProcess, Sample
from tests.benchmarks.table import Floor, Row

TESTS = 1_000
PROCESSES = 10
MESSAGES = 100_000
RDY = 2500


def measure(bench: Bench) -> Iterator[Row]:
    """Measure a test with a new broker, an advance of the clock, and the journal."""
    with NsqdServer():  # the event-loop thread is kept, as the fixtures keep it
        tests = bench.effort.count(TESTS)
        begin = time.perf_counter()
        samples = [_play() for _ in range(tests)]
        seconds = time.perf_counter() - begin
    peers: dict[str, float] = {}
    if bench.nsqd_binary is not None:
        processes = [_play_process([bench.nsqd_binary]) for _ in range(bench.effort.count(PROCESSES))]
        peers["nsqd"] = median(sample["handled"] for sample in processes)
    yield Row(
        what="new broker, until a message is handled",
        unit="ms",
        value=median(sample["handled"] for sample in samples),
        peers=peers,
        less_is_better=True,
        floors=[Floor(at_most=5)],
    )
    yield Row(
        what="its end",
        unit="ms",
        value=median(sample["stopped"] for sample in samples),
        less_is_better=True,
        floors=[Floor(at_most=5)],
    )
    yield Row(
        what="1,000 tests, each with a new broker and a message",
        unit="s",
        value=seconds / tests * 1_000,
        less_is_better=True,
        floors=[Floor(at_most=20)],
    )
    count = bench.effort.count(MESSAGES)
    yield Row(
        what=f"advance over {count:,} messages in flight",
        unit="s",
        value=median(_advance(count) for _ in range(bench.effort.rounds)),
        less_is_better=True,
        floors=[Floor(at_most=1)],
    )
    yield from _journal_rows(bench)


def _play() -> Sample:
    begin = time.perf_counter()
    with NsqdServer() as nsqd:
        nsqd.publish("t", b"x")
        with BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
            message = consumer.receive()
            assert message is not None
            message.finish()
            handled = time.perf_counter()
        closed = time.perf_counter()
    return {"handled": (handled - begin) * 1e3, "stopped": (time.perf_counter() - closed) * 1e3}


def _play_process(command: Sequence[str]) -> Sample:
    begin = time.perf_counter()
    with BrokerProcess(command) as broker:
        with BlockingProducer(broker.address) as producer:
            producer.publish("t", b"x")
        with BlockingConsumer("t", "c", nsqd_tcp_addresses=[broker.address]) as consumer:
            message = consumer.receive()
            assert message is not None
            message.finish()
            handled = time.perf_counter()
    return {"handled": (handled - begin) * 1e3}


def _advance(count: int) -> float:
    """Return the seconds of an advance by the message timeout, while one client holds all messages."""
    with NsqdServer(clock="manual", max_rdy_count=count, mem_queue_size=2 * count, journal=False) as nsqd:
        raw_client.make_channel(nsqd.tcp_address, "t")
        raw_client.fill(nsqd.tcp_address, "t", count)
        with raw_client.subscribe(nsqd.tcp_address, "t") as connection:
            raw_client.hold(connection, count)
            begin = time.perf_counter()
            nsqd.clock.advance(60)
            seconds = time.perf_counter() - begin
            assert nsqd.topic("t").channel("channel").timeout_count >= count
            return seconds


def _journal_rows(bench: Bench) -> Iterator[Row]:
    count = bench.effort.count(MESSAGES)
    runs = {"on": partial(_through, count, journal=True), "off": partial(_through, count, journal=False)}
    effort = attrs.evolve(bench.effort, rounds=max(bench.effort.rounds, 3))
    samples = Bench(effort, bench.nsqd_binary, notes=bench.notes).take_turns(runs)
    yield Row(
        what="with the journal, of the rate without: MPUB of 200, delivery, FIN",
        unit="ratio",
        value=samples["on"]["rate"] / samples["off"]["rate"],
        floors=[Floor(at_least=0.8)],
    )


def _through(count: int, *, journal: bool) -> Sample:
    """Return messages per second from the first publish to the last FIN."""
    with NsqdServer(journal=journal, mem_queue_size=2 * count) as nsqd:
        raw_client.make_channel(nsqd.tcp_address, "t")
        begin = time.perf_counter()
        raw_client.fill(nsqd.tcp_address, "t", count)
        raw_client.drain(nsqd.tcp_address, "t", count)
        return {"rate": count / (time.perf_counter() - begin)}
