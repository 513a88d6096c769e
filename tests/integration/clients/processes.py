"""Programs that run beside a test: a broker, nsqlookupd, another client.

A test waits for output of a program, never for time to pass, and long enough for a machine that stalls for seconds. A
thread reads each program's output into a queue, so a line can be awaited with a limit, and no program blocks on a full
pipe. ``Program`` implements that; ``run_nsqd`` and ``run_nsqlookupd`` start nsqkit's servers on ports that the system
chooses, and return when they listen.

The output of a program is printed when a test fails. NSQD and NSQLOOKUPD in the environment name other programs to
start instead, which shows whether a failure is the broker's fault or the client's.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, Any

import attrs

WAIT_LIMIT = 60.0
"""Seconds after which a program counts as stuck."""

NSQD = os.environ.get("NSQD", f"{sys.executable} -m nsqkit nsqd").split()
NSQLOOKUPD = os.environ.get("NSQLOOKUPD", f"{sys.executable} -m nsqkit nsqlookupd").split()


def until(condition: Callable[[], object]) -> None:
    """Check repeatedly until ``condition`` holds."""
    deadline = time.monotonic() + WAIT_LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"


@attrs.define(eq=False)
class Program:
    """The output of one program, line by line."""

    output: list[str] = attrs.field(factory=list)
    _lines: queue.SimpleQueue[str] = attrs.field(factory=queue.SimpleQueue)

    def listen(self, pipe: IO[str]) -> None:
        """Read all lines of ``pipe``, and append an empty one after the last."""
        for line in pipe:
            self.output.append(line)
            self._lines.put(line)
        self._lines.put("")

    def line(self) -> str:
        """Return the next line."""
        try:
            line = self._lines.get(timeout=WAIT_LIMIT)
        except queue.Empty:
            raise AssertionError("the program says nothing more") from None
        assert line, "the program has ended"
        return line

    def values(self, count: int) -> list[dict[str, Any]]:
        """Return the JSON values of the next ``count`` lines."""
        return [json.loads(self.line()) for _ in range(count)]


@contextmanager
def run(*command: str | Path, output: str = "stdout", ending: signal.Signals) -> Iterator[Program]:
    """Run a program and read its ``output``; at the end send ``ending``, and kill it if that has no effect."""
    program = Program()
    pipes = {output: subprocess.PIPE}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, **pipes) as process:  # type: ignore[call-overload]
        ear = Thread(target=program.listen, args=[getattr(process, output)])
        ear.start()
        try:
            yield program
            process.send_signal(ending)
            status = process.wait(WAIT_LIMIT)
            assert status in {0, -signal.SIGKILL}, f"{command[0]} ended with {status}"
        except BaseException:
            process.kill()
            ear.join()
            sys.stderr.writelines(program.output)
            raise
        finally:
            process.kill()
            ear.join()


@attrs.frozen
class Server:
    """The addresses of a broker or nsqlookupd."""

    tcp_address: str
    http_address: str

    def get(self, path: str) -> Any:
        """Return the document at ``path``."""
        with urllib.request.urlopen(f"http://{self.http_address}{path}", timeout=WAIT_LIMIT) as answer:
            return json.load(answer)

    def post(self, path: str, body: str = "") -> None:
        """Post ``body`` to ``path``."""
        url = f"http://{self.http_address}{path}"
        with urllib.request.urlopen(url, body.encode(), timeout=WAIT_LIMIT):
            pass

    @property
    def topic(self) -> Any:
        """The one topic in /stats."""
        (topic,) = self.get("/stats?format=json&topic=topic")["topics"]
        return topic

    @property
    def channel(self) -> Any:
        """The one channel of the topic in /stats."""
        (channel,) = self.topic["channels"]
        return channel

    @property
    def publisher(self) -> Any:
        """The one client that has published, in /stats."""
        (publisher,) = self.get("/stats?format=json")["producers"]
        return publisher


@contextmanager
def run_client(*command: str | Path) -> Iterator[Program]:
    """Run a client, and kill it at the end of the block."""
    with run(*command, ending=signal.SIGKILL) as program:
        yield program


@contextmanager
def run_nsqd(folder: Path, *flags: str) -> Iterator[Server]:
    """Run a broker that keeps its files in ``folder``."""
    with _run_server([*NSQD, f"--data-path={folder}", "--broadcast-address=127.0.0.1", *flags]) as server:
        yield server


@contextmanager
def run_nsqlookupd() -> Iterator[Server]:
    """Run nsqlookupd."""
    with _run_server(NSQLOOKUPD) as server:
        yield server


@contextmanager
def _run_server(command: list[str]) -> Iterator[Server]:
    addresses = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    with run(*command, *addresses, output="stderr", ending=signal.SIGTERM) as program:
        listening: dict[str, str] = {}
        while not {"TCP", "HTTP"} <= listening.keys():
            listening.update(re.findall(r"(TCP|HTTP): listening on (\S+)", program.line()))
        yield Server(listening["TCP"], listening["HTTP"])
