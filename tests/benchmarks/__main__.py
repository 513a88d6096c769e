"""``python -m tests.benchmarks [NAME ...] [--quick] [--json] [--nsqd-binary PATH] …``: measure, and print a table.

The table names the machine, the versions and the subjects that were left out, so that others can repeat it. Progress
goes to stderr, the table alone to stdout. ``MEASUREMENTS`` lists the measurements.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from tests.benchmarks import (
    attacks,
    blocking,
    consume,
    double,
    growth,
    idle,
    latency,
    memory,
    publish,
    simulation,
    soak,
    spark,
    start,
    throughput,
    wire,
)
from tests.benchmarks.harness import PEERS, Bench, Effort
from tests.benchmarks.table import Row, render, summary

MEASUREMENTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "wire": wire.measure,
    "publish": publish.measure,
    "consume": consume.measure,
    "blocking": blocking.measure,
    "soak": soak.measure,
    "latency": latency.measure,
    "broker": throughput.measure,
    "attacks": attacks.measure,
    "growth": growth.measure,
    "start": start.measure,
    "double": double.measure,
    "memory": memory.measure,
    "idle": idle.measure,
    "simulation": simulation.measure,
    "spark": spark.measure,
}

QUICK = Effort(rounds=1, scale=0.05)


def main(words: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    arguments = _parse(words)
    signal.signal(signal.SIGTERM, _leave)  # so that children are ended on the way out
    effort = QUICK if arguments.quick else Effort(rounds=arguments.rounds)
    bench = Bench(effort, arguments.nsqd_binary, arguments.nsq_bench_directory)
    rows = list(_measure(bench, arguments.names or list(MEASUREMENTS)))
    environment = _environment(bench)
    if arguments.json:
        document = {
            "environment": environment,
            "notes": bench.notes,
            "rows": [row.as_document() for row in rows],
        }
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print(
            render(rows),
            "",
            *(f"{key}: {value}" for key, value in environment.items()),
            *bench.notes,
            summary(rows),
            sep="\n",
        )


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description="Measure nsqkit beside its peers.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(MEASUREMENTS)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="one round with a twentieth of the messages")
    parser.add_argument("--rounds", type=int, default=Effort().rounds, help="turns of each subject; %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON, with the figures of every peer")
    parser.add_argument(
        "--nsqd-binary", metavar="PATH", help="measure clients against this nsqd, and brokers beside it"
    )
    parser.add_argument(
        "--nsq-bench-directory",
        metavar="DIR",
        help="measure brokers by the bench_writer and bench_reader in there",
    )
    arguments = parser.parse_args(words)
    for name in arguments.names:
        if name not in MEASUREMENTS:
            parser.error(f"{name!r} is not measured; there are {', '.join(MEASUREMENTS)}")
    return arguments


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _measure(bench: Bench, names: Sequence[str]) -> Iterator[Row]:
    for name in names:
        begin = time.perf_counter()
        print(f"{name} …", end=" ", flush=True, file=sys.stderr)
        yield from MEASUREMENTS[name](bench)
        print(f"{time.perf_counter() - begin:.1f} s", file=sys.stderr)
    bench.notes.extend(f"{peer} is not installed: left out" for peer in PEERS if peer not in bench.peers)


def _environment(bench: Bench) -> dict[str, str]:
    packages = [*bench.peers, *bench.loops[1:], *(["pyspark"] if spark.is_installed() else [])]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "Python": f"{platform.python_version()} with {', '.join(versions)}",
        "a call of a function that does nothing": f"{_call_ns():.0f} ns",
        "broker for the clients": bench.nsqd_binary or "python -m nsqkit nsqd",
        "rounds": f"{bench.effort.rounds}, the median of each figure counts, and of each ratio",
    }


def _call_ns() -> float:
    """Measure the speed of the machine and of this build of Python."""
    count = 100_000
    return min(timeit.repeat("call()", "def call(): pass", number=count, repeat=9)) / count * 1e9


if __name__ == "__main__":
    main()
