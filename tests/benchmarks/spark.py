"""Measures Spark: reads with and without a WAL, writes, a trickle, and the memory of a source's worker.

All of it shares the machine: the brokers, the JVM and the Python workers. Subjects that are compared take turns in one
session. It needs Java and the extra ``spark``, which ``make bench ARGS=spark`` installs.
"""

from __future__ import annotations

import importlib.util
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Final

import attrs

from nsqkit import BlockingProducer
from tests.benchmarks import raw_client
from tests.benchmarks.harness import ROOT, Bench, BrokerProcess, RunFailed, Sample
from tests.benchmarks.table import Floor, Row

ROWS: Final = 400_000
ROWS_PER_BATCH: Final = 50_000
REPLAYS: Final = 5
REPLAY_ROUNDS: Final = 3
WRITES: Final = 1_000_000
MESSAGES_PER_SECOND: Final = 50
TRICKLE: Final = 1_000
BYTES: Final = 2_000_000_000
LARGE_BODY: Final = 10_000

MASTER: Final = "local[4]"
SMALL_MASTER: Final = "local-cluster[1,2,512]"
"""One executor in a process of its own."""

SMALL_MEMORY: Final = {"spark.executor.memory": "512m"}

TASK_TIMEOUT: Final = 180.0
STOP_TIMEOUT: Final = 30.0


def measure(bench: Bench) -> Iterator[Row]:
    """Measure everything against two brokers."""
    if not is_installed():
        bench.notes.append("pyspark is not installed: spark is left out; make bench ARGS=spark installs it")
        return
    with bench.serve() as first, bench.serve() as second:
        brokers = (first, second)
        with SparkProgram(MASTER) as spark:
            _warm_up(bench, brokers, spark)
            yield from _read_rows(bench, brokers, spark)
            yield from write_rows(bench, brokers, spark)
            yield from trickle_rows(bench, brokers, spark)
        with SparkProgram(SMALL_MASTER, SMALL_MEMORY) as spark:
            yield from _memory_rows(bench, brokers, spark)


def is_installed() -> bool:
    """Return whether there is Spark in this environment."""
    return importlib.util.find_spec("pyspark") is not None


class SparkProgram:
    """A process with a Spark session, for ``with``.

    Args:
        master: of the session.
        settings: Spark's, for the session.
    """

    def __init__(self, master: str, settings: Mapping[str, str] | None = None) -> None:
        program = "tests.benchmarks.programs.with_spark"
        self._command = [sys.executable, "-m", program, master, json.dumps(settings or {})]
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run(self, name: str, **arguments: Any) -> Sample:
        """Do a task, and return its figures.

        Raises:
            RunFailed: it took too long, or failed.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([name, arguments]) + "\n")
            self._process.stdin.flush()
            answer = self._answers.get(timeout=TASK_TIMEOUT)
        except (BrokenPipeError, queue.Empty):
            answer = ""
        if not answer:
            self._errors.seek(0)
            raise RunFailed(f"{name} failed: {self._errors.read().strip()[-2000:]}")
        figures: dict[str, float] = json.loads(answer)
        return figures

    def __enter__(self) -> SparkProgram:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Spark prints there, too
                self._answers.put(line)
        self._answers.put("")

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with self._errors:
            try:
                self._process.stdin.close()
                self._process.wait(STOP_TIMEOUT)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()


def _addresses(brokers: Sequence[BrokerProcess]) -> dict[str, Any]:
    return {
        "addresses": [broker.address for broker in brokers],
        "http_addresses": [broker.http_address for broker in brokers],
    }


def _filled_topic(bench: Bench, brokers: Sequence[BrokerProcess], count: int) -> str:
    topic = bench.new_topic()
    for broker in brokers:
        raw_client.make_channel(broker.address, topic)
        raw_client.fill(broker.address, topic, count // len(brokers))
    return topic


def _once(bench: Bench, name: str, run: Callable[[], Sample]) -> Sample | None:
    """Run a subject that has no other to be compared with; None if it failed, which is a note."""
    once = Bench(attrs.evolve(bench.effort, rounds=1), notes=bench.notes)
    return once.take_turns({name: run}).get(name)


def _stream(
    bench: Bench, brokers: Sequence[BrokerProcess], spark: SparkProgram, ack_mode: str, partitions: int
) -> Sample:
    topic = _filled_topic(bench, brokers, bench.effort.count(ROWS))
    return spark.run(
        "stream",
        **_addresses(brokers),
        topic=topic,
        ack_mode=ack_mode,
        partitions=partitions,
        max_in_flight=2500 * max(partitions, len(brokers)),
        rows_per_batch=bench.effort.count(ROWS_PER_BATCH),
    )


def _warm_up(bench: Bench, brokers: Sequence[BrokerProcess], spark: SparkProgram) -> None:
    """Let the session start its workers and compile its code."""
    addresses = _addresses(brokers)
    for ack_mode in ("wal", "receive"):
        topic = _filled_topic(bench, brokers, bench.effort.count(ROWS // 10))
        spark.run("stream", **addresses, topic=topic, ack_mode=ack_mode, partitions=2)
    spark.run("write", addresses=addresses["addresses"], topic=bench.new_topic(), count=bench.effort.count(ROWS // 10))


def _read_rows(bench: Bench, brokers: Sequence[BrokerProcess], spark: SparkProgram) -> Iterator[Row]:
    subjects = {mode: partial(_stream, bench, brokers, spark, mode, 2) for mode in ("receive", "wal")}
    samples = bench.take_turns(subjects)
    if "wal" in samples:
        yield Row(
            what="stream with a WAL, 2 partitions",
            unit="rows/s",
            value=samples["wal"]["per_second"],
            peers={"ackMode=receive": samples["receive"]["per_second"]} if "receive" in samples else {},
            floors=[Floor(at_least=60_000), Floor(ratio=0.9, peer="ackMode=receive")],
        )
    for what, count in (("1 partition", 1), ("4 partitions", 4)):
        if figures := _once(bench, what, partial(_stream, bench, brokers, spark, "wal", count)):
            yield Row(what=f"stream with a WAL, {what}", unit="rows/s", value=figures["per_second"])
    yield from replay_rows(bench, brokers, spark)


def replay_rows(bench: Bench, brokers: Sequence[BrokerProcess], spark: SparkProgram) -> Iterator[Row]:
    topic = _filled_topic(bench, brokers, bench.effort.count(ROWS))
    replay = partial(
        spark.run,
        "replay",
        addresses=_addresses(brokers)["addresses"],
        topic=topic,
        replays=bench.effort.count(REPLAYS),
        rounds=bench.effort.count(REPLAY_ROUNDS),
    )
    if figures := _once(bench, "replay", replay):
        yield Row(
            what="read of a WAL, without a broker",
            unit="rows/s",
            value=figures["replay_per_second"],
            peers={"a source without work": figures["transport_per_second"]},
            floors=[Floor(at_least=1_500_000), Floor(ratio=0.7, peer="a source without work")],
        )


def write_rows(bench: Bench, brokers: Sequence[BrokerProcess], spark: SparkProgram) -> Iterator[Row]:
    def run(name: str) -> Sample:
        addresses, count = _addresses(brokers)["addresses"], bench.effort.count(WRITES)
        return spark.run(name, addresses=addresses, topic=bench.new_topic(), count=count)

    samples = bench.take_turns({name: partial(run, name) for name in ("write", "publish")})
    names = {"write": "write of a DataFrame, MPUB of 1,000", "publish": "one task of it, without Spark"}
    for name, sample in samples.items():
        yield Row(what=names[name], unit="rows/s", value=sample["per_second"], floors=[Floor(at_least=300_000)])


def trickle_rows(bench: Bench, brokers: Sequence[BrokerProcess], spark: SparkProgram) -> Iterator[Row]:
    topic = bench.new_topic()
    for broker in brokers:
        raw_client.make_channel(broker.address, topic)
    trickle = partial(
        spark.run,
        "trickle",
        **_addresses(brokers),
        topic=topic,
        per_second=MESSAGES_PER_SECOND,
        count=max(bench.effort.count(TRICKLE), 20),
    )
    figures = _once(bench, "trickle", trickle)
    if figures is None:
        return
    for name, at_most in (("p50", 600), ("p99", 1200)):
        yield Row(
            what=f"{MESSAGES_PER_SECOND} messages/s, publish to sink, {name}",
            unit="ms",
            value=figures[f"{name}_ms"],
            less_is_better=True,
            floors=[Floor(at_most=at_most)],
        )


def _memory_rows(bench: Bench, brokers: Sequence[BrokerProcess], spark: SparkProgram) -> Iterator[Row]:
    count = bench.effort.count(BYTES // LARGE_BODY)
    topic = bench.new_topic()
    with ExitStack() as stack:
        for broker in brokers:
            raw_client.make_channel(broker.address, topic)
            producer = stack.enter_context(BlockingProducer(broker.address))
            for _ in range(-(-count // len(brokers) // 100)):
                producer.multi_publish(topic, [b"x" * LARGE_BODY] * 100)
    stream = partial(spark.run, "stream", **_addresses(brokers), topic=topic, ack_mode="wal", partitions=2)
    if figures := _once(bench, "memory", stream):
        yield Row(
            what=f"a source's worker, {count * LARGE_BODY / 1e9:g} GB through an executor of 512 MB",
            unit="MB",
            value=figures["worker_mb"],
            less_is_better=True,
            floors=[Floor(at_most=200)],
        )
