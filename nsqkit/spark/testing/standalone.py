"""A standalone cluster on this machine: a master and its workers, each in a process of its own.

The start scripts for them are not part of the package of PyPI, but ``bin/spark-class`` is.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from nsqkit.spark.testing.session import HOST, session_environment, spark_home

START_LIMIT: Final = 120.0
"""Real seconds in which a process has to log that it is ready."""

LOOK_INTERVAL: Final = 0.05
"""Real seconds between two looks at a log."""

LOG_SIZE_MAX: Final = 4000
"""Bytes of a log in an error."""

_MASTER_READY: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_READY: Final = re.compile(r"Successfully registered with master (spark://\S+)")


@contextmanager
def standalone_cluster(workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[str]:
    """Enter with the URL of a master, which has workers; at the end they are killed, and their executors with them.

    Args:
        workers: their number.
        cores: of each worker.
        memory: of each worker, in Spark's notation.

    Raises:
        AssertionError: a process has ended, or is not ready in time; with the end of its log.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        addresses = ["--host", HOST, "--port", "0", "--webui-port", "0"]
        master = stack.enter_context(_daemon(folder / "master", "master.Master", addresses))
        url = _wait(master, folder / "master", _MASTER_READY)
        limits = ["--cores", str(cores), "--memory", memory]
        started = []
        for number in range(workers):
            log = folder / f"worker-{number}"
            words = [*addresses, *limits, "--work-dir", str(folder / f"work-{number}"), url]
            started.append((stack.enter_context(_daemon(log, "worker.Worker", words)), log))
        for worker, log in started:
            _wait(worker, log, _WORKER_READY)
        yield url


@contextmanager
def _daemon(log: Path, name: str, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Enter with a process in a group of its own, which is killed at the end."""
    home = spark_home()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *words],
            env={**os.environ, **session_environment(), "SPARK_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], log: Path, ready: re.Pattern[str]) -> str:
    """Return the URL in the line of a log that says that the process is ready."""
    end = time.monotonic() + START_LIMIT
    while True:
        try:
            status: int | None = process.wait(LOOK_INTERVAL)
        except subprocess.TimeoutExpired:
            status = None
        text = log.read_text(errors="replace")
        if found := ready.search(text):
            return found[1]
        if status is not None or time.monotonic() > end:
            event = "is not ready" if status is None else f"has ended with status {status}"
            raise AssertionError(f"the {log.name} {event}:\n{text[-LOG_SIZE_MAX:]}")
