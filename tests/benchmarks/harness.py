"""Shared by all measurements: the amount to measure, processes, rounds.

Every figure is fair and bounded. Subjects alternate (A B A B), so that a busy machine slows all of them; the figure is
the median of the rounds, and for two subjects the median of their ratios. Clients and brokers are separate processes,
each with a time limit; none of them outlives the run.

``Bench`` is the argument of a measurement, ``BrokerProcess`` a broker to measure or to measure with, ``run_program``
runs a client.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import attrs

from tests.benchmarks.programs.assignment import Assignment
from tests.benchmarks.table import Median

ROOT = Path(__file__).resolve().parents[2]
NSQKIT_NSQD = (sys.executable, "-m", "nsqkit", "nsqd")
NSQKIT_NSQLOOKUPD = (sys.executable, "-m", "nsqkit", "nsqlookupd")

PEERS = {"pynsq": "nsq", "gnsq": "gnsq", "ansq": "ansq", "asyncnsq": "asyncnsq"}
"""Other clients in Python, each with the module that it installs."""

_LISTENING = re.compile(r"\b(TCP|HTTP): listening on (\S+)")

START_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0
PROGRAM_TIMEOUT = 60.0
"""Seconds after which a process counts as failed."""

MEM_QUEUE_SIZE = 5_000_000
"""More messages than any measurement queues; nsqd sets aside 8 bytes for each, in every topic and channel."""

Sample = Mapping[str, float]
"""The figures of one run of one subject, by name."""


class RunFailed(Exception):
    """A process has failed."""


@attrs.frozen
class Effort:
    """The amount to measure.

    Attributes:
        rounds: runs of each subject.
        scale: the share of the messages that a whole run sends.
    """

    rounds: int = 3
    scale: float = 1.0

    def count(self, whole: int) -> int:
        """Return the number of messages, ``whole`` in a whole run."""
        return max(round(whole * self.scale), 1)


@attrs.define
class Bench:
    """The argument of a measurement.

    Attributes:
        effort: the amount to measure.
        nsqd_binary: another nsqd: it serves the clients, and is nsqkit's peer where brokers are measured.
        nsq_bench_directory: where nsqd's own bench_writer and bench_reader are, to measure brokers by.
        notes: remarks for the reader of the table.
    """

    effort: Effort = attrs.field(factory=Effort)
    nsqd_binary: str | None = None
    nsq_bench_directory: str | None = None
    notes: list[str] = attrs.field(factory=list)
    _topic_numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    @property
    def loops(self) -> list[str]:
        """The event loops that nsqkit's clients are measured on."""
        return ["asyncio", "uvloop"] if importlib.util.find_spec("uvloop") else ["asyncio"]

    @property
    def peers(self) -> list[str]:
        """The other clients that are installed."""
        return [name for name, module in PEERS.items() if importlib.util.find_spec(module)]

    @property
    def brokers(self) -> dict[str, Sequence[str]]:
        """The command line of each broker to measure."""
        return {"nsqkit": NSQKIT_NSQD, **({"nsqd": (self.nsqd_binary,)} if self.nsqd_binary else {})}

    def serve(self) -> BrokerProcess:
        """Return the broker that clients are measured against."""
        return BrokerProcess((self.nsqd_binary,) if self.nsqd_binary else NSQKIT_NSQD)

    def new_topic(self) -> str:
        """Return a name that was not used before."""
        return f"bench-{next(self._topic_numbers)}"

    def take_turns(self, subjects: Mapping[str, Callable[[], Sample]]) -> dict[str, Sample]:
        """Run every subject once a round; return its ``Median`` figures. A failed subject is left out, with a note."""
        samples: dict[str, list[Sample]] = {name: [] for name in subjects}
        for _ in range(self.effort.rounds):
            for name in list(samples):
                try:
                    samples[name].append(subjects[name]())
                except (RunFailed, OSError) as error:
                    del samples[name]
                    self.notes.append(f"{name} failed and is left out: {error}")
        return {name: _medians(runs) for name, runs in samples.items()}


def _medians(samples: Sequence[Sample]) -> Sample:
    return {key: Median([sample[key] for sample in samples]) for key in samples[0]}


def run_program(name: str, assignment: Assignment) -> Sample:
    """Run a client program (see ``programs``) and return its figures.

    Raises:
        RunFailed: it took too long, or ended with an error.
    """
    command = [sys.executable, "-m", f"tests.benchmarks.programs.with_{name}", assignment.as_argument()]
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{assignment.mode} took more than {PROGRAM_TIMEOUT:g} seconds") from error
    if run.returncode != 0 or not run.stdout:
        raise RunFailed(f"{assignment.mode} ended with code {run.returncode}: {run.stderr.strip()[-500:]}")
    figures: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return figures


def memory_bytes(process_id: int) -> int:
    """Return how much of a process's memory is resident."""
    pages = Path(f"/proc/{process_id}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class BrokerProcess:
    """A broker as a child process, for ``with``: it listens when it is entered, and is gone when it is left.

    Args:
        command: how to start it; flags are added. It must log the line ``TCP: listening on``, as nsqd does.
        flags: further ones.

    Attributes:
        address: ``host:port`` that clients connect to.
        http_address: the same of the HTTP routes.
    """

    def __init__(self, command: Sequence[str], *flags: str) -> None:
        self.address = ""
        self.http_address = ""
        self._command = command
        self._flags = flags

    def __enter__(self) -> BrokerProcess:
        self._folder = tempfile.TemporaryDirectory(prefix="nsqkit-bench-")
        self._process = subprocess.Popen(
            [*self._command, "--broadcast-address=127.0.0.1", *self._own_flags(), *self._flags],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        addresses: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        self._last_line = ""
        self._log = threading.Thread(target=self._read_log, args=[addresses], daemon=True)
        self._log.start()
        try:
            found = addresses.get(timeout=START_TIMEOUT)
        except queue.Empty:
            self._stop()
            raise RunFailed(f"{' '.join(self._command)} took more than {START_TIMEOUT:g} seconds") from None
        except BaseException:
            self._stop()
            raise
        if not found:
            self._stop()
            code = self._process.returncode
            raise RunFailed(f"{' '.join(self._command)} ended with code {code}: {self._last_line}")
        self.address, self.http_address = found["TCP"], found["HTTP"]
        return self

    def _own_flags(self) -> list[str]:
        return [
            *(f"--{name}-address=127.0.0.1:0" for name in ("tcp", "http", "https")),
            f"--mem-queue-size={MEM_QUEUE_SIZE}",
            f"--data-path={self._folder.name}",
        ]

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop its process during the block."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used so far, all of its threads together."""
        # clock_getcpuclockid(3) of Linux as a formula: Python does not offer the call.
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def memory_bytes(self) -> int:
        """Return how much of its memory is resident."""
        return memory_bytes(self._process.pid)

    def stop(self) -> float:
        """End it by SIGTERM; return after how many seconds it had gone."""
        begin = time.perf_counter()
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT)
        return time.perf_counter() - begin

    def _read_log(self, addresses: queue.SimpleQueue[dict[str, str]]) -> None:
        """Record both addresses, then read on, so that the broker never blocks on its log."""
        assert self._process.stdout is not None
        found: dict[str, str] = {}
        for line in self._process.stdout:
            self._last_line = line.rstrip()
            if len(found) < 2 and (match := _LISTENING.search(self._last_line)):
                found[match[1]] = match[2]
                if len(found) == 2:
                    addresses.put(found)
        addresses.put({})

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()


class LookupdProcess(BrokerProcess):
    """The same of an nsqlookupd."""

    def _own_flags(self) -> list[str]:
        return [f"--{name}-address=127.0.0.1:0" for name in ("tcp", "http")]
