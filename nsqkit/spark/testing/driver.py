"""Spark programs in processes of their own, which a test runs to the end or kills.

The driver, its JVM and the executors of ``local-cluster`` are one process group and die at the same moment. The Python
workers are not in it: they end when they find that their JVM is gone, as executors on other machines do.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import attrs

from nsqkit.spark.testing.session import LOCAL, session_environment, session_settings, spark_home

LOOK_INTERVAL: Final = 0.02
"""Real seconds between two calls of a condition."""

OUTPUT_SIZE_MAX: Final = 20_000
"""Bytes of a program's output in an error."""


def run_driver(program: str | os.PathLike[str], *arguments: object, timeout: float = 180.0, master: str = LOCAL) -> str:
    """Run a Spark program to its end.

    Args:
        program: the file. Its session has ``master`` and the settings of ``nsqkit.spark.testing.session``, unless it
            sets others.
        arguments: of its command line.
        timeout: real seconds.
        master: its master.

    Returns:
        Its output, on both streams.

    Raises:
        AssertionError: it has ended with another status than 0, or has not ended in time.
    """
    with _running(program, arguments, master) as driver:
        if (status := driver.wait(timeout)) != 0:
            raise AssertionError(driver.describe(f"has not ended in {timeout:g} s" if status is None else "has failed"))
        return driver.output()


def kill_driver(
    program: str | os.PathLike[str],
    *arguments: object,
    when: Callable[[], object],
    timeout: float = 180.0,
    master: str = LOCAL,
) -> None:
    """Run a Spark program until a condition holds, then kill it by SIGKILL: Python, the JVM and its executors.

    Args:
        program: the file, as for ``run_driver``.
        arguments: of its command line.
        when: called again and again without arguments; its result is true when the program is to be killed.
        timeout: real seconds.
        master: its master.

    Raises:
        AssertionError: the program has ended before, or the condition was false for so long.
    """
    with _running(program, arguments, master) as driver:
        end = time.monotonic() + timeout
        while not when():
            if driver.wait(LOOK_INTERVAL) is not None:
                raise AssertionError(driver.describe("has ended before the condition held"))
            if time.monotonic() > end:
                raise AssertionError(driver.describe(f"ran for {timeout:g} s, and the condition did not hold"))


@attrs.frozen
class _Driver:
    """A program that runs."""

    name: str
    process: subprocess.Popen[bytes]
    file: IO[bytes]

    def wait(self, seconds: float) -> int | None:
        """Return the exit status; None if it has not ended after so long."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> str:
        self.file.seek(0)
        return self.file.read().decode("utf-8", "replace")

    def describe(self, event: str) -> str:
        return f"{self.name} {event} (status {self.process.returncode}):\n{self.output()[-OUTPUT_SIZE_MAX:]}"


@contextmanager
def _running(program: str | os.PathLike[str], arguments: tuple[object, ...], master: str) -> Iterator[_Driver]:
    """Enter with a program that runs in its own process group, which is killed at the end."""
    command = [sys.executable, os.fspath(program), *map(str, arguments)]
    words = ["--master", master]
    for name, value in session_settings({}).items():
        words += ["--conf", f"{name}={value}"]
    environment = {
        **os.environ,
        **session_environment(),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"]),
    }
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        if master.startswith("local-cluster"):
            environment["SPARK_HOME"] = home
            _link_home(Path(home))
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield _Driver(os.fspath(program), process, output)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _link_home(home: Path) -> None:
    """Make a folder like Spark's: executors of ``local-cluster`` write below it, and no setting names another one."""
    for path in spark_home().iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
