"""nsqd and nsqlookupd in three forms: in this process, as a process of nsqkit, and as a given program.

A test cannot distinguish them. All take nsqd's flags, listen on free ports, answer when ``start`` has returned, and can
be killed and started again with their files on disk.

``Server`` is the interface for tests; ``OwnServer`` and ``ServerProcess`` implement it, and ``Kind`` creates either.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Any, Final, Protocol, TypeAlias

import attrs

from nsqkit.testing.servers import NsqdServer, NsqlookupdServer

WAIT_LIMIT: Final = 60.0
"""Seconds after which a wait fails."""

IN_PROCESS: Final = "in-process"
PROCESS: Final = "process"
BINARY: Final = "binary"

_COMMON: Final = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--broadcast-address=127.0.0.1")
_HTTPS: Final = "--https-address=127.0.0.1:0"
_LISTENING: Final = re.compile(r"\b(TCP|HTTP): listening on (\S+)")


class Server(Protocol):
    """One nsqd or nsqlookupd."""

    @property
    def tcp_address(self) -> str:
        """``host:port`` where it listens; it changes with each start."""
        ...

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP routes; it changes with each start."""
        ...

    def start(self) -> None:
        """Start it; return when it listens."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...

    def stop(self) -> None:
        """Stop it, and return when it has exited with status 0."""
        ...

    def output(self) -> str:
        """Return its output since the last call."""
        ...


class OwnServer:
    """nsqkit in a thread of this process. It cannot be killed without the test, so ``kill`` is ``stop``."""

    def __init__(self, make: Callable[[], NsqdServer | NsqlookupdServer]) -> None:
        self._make = make
        self._stack = ExitStack()
        self._server = make()

    @property
    def tcp_address(self) -> str:
        return self._server.tcp_address

    @property
    def http_address(self) -> str:
        return self._server.http_address

    def start(self) -> None:
        self._server = self._make()
        self._stack.enter_context(self._server)

    def kill(self) -> None:
        self.stop()

    def stop(self) -> None:
        self._stack.close()

    def output(self) -> str:
        return ""


class ServerProcess:
    """A process of nsqkit or of another program, with its output."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._ear: Thread | None = None
        self._lines: list[str] = []
        self._heard = Condition()
        self._said_count = 0
        self._listening: dict[str, str] = {}
        self._at_its_end = False

    @property
    def tcp_address(self) -> str:
        return self._listening.get("TCP", "")

    @property
    def http_address(self) -> str:
        return self._listening.get("HTTP", "")

    def start(self) -> None:
        self._listening.clear()
        self._at_its_end = False
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        self._ear = Thread(target=self._listen, args=[self._process.stdout])
        self._ear.start()
        with self._heard:
            self._heard.wait_for(lambda: len(self._listening) == 2 or self._at_its_end, WAIT_LIMIT)
        assert len(self._listening) == 2, f"it does not listen: {self.output()}"

    def kill(self) -> None:
        self._end(subprocess.Popen.kill)

    def stop(self) -> None:
        status = self._end(subprocess.Popen.terminate)
        assert status in {0, None}, f"it has ended with status {status}"

    def output(self) -> str:
        with self._heard:
            lines, self._said_count = self._lines[self._said_count :], len(self._lines)
        return "".join(lines)

    def _end(self, how: Callable[[subprocess.Popen[str]], None]) -> int | None:
        """Return the exit status; None if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert self._ear is not None
        with process:
            how(process)
            try:
                return process.wait(WAIT_LIMIT)
            finally:
                process.kill()  # if it still runs; otherwise the reader thread would never end
                self._ear.join()

    def _listen(self, pipe: IO[str]) -> None:
        with suppress(ValueError):  # the pipe may be closed already
            for line in pipe:
                self._hear(line)
        with self._heard:
            self._at_its_end = True
            self._heard.notify_all()

    def _hear(self, line: str) -> None:
        with self._heard:
            self._lines.append(line)
            if found := _LISTENING.search(line):
                self._listening[found[1]] = found[2]
            self._heard.notify_all()


@attrs.frozen
class Kind:
    """A form of the servers.

    Attributes:
        name: IN_PROCESS, PROCESS or BINARY.
        binary: the path of the program, of a BINARY.
    """

    name: str
    binary: str = ""

    def nsqd(self, data_path: Path, *flags: str) -> Server:
        """Return an nsqd that is not started yet."""
        words = [*_COMMON, _HTTPS, f"--data-path={data_path}", *flags]
        if self.name == IN_PROCESS:
            return OwnServer(lambda: NsqdServer(**_keywords(words)))
        return ServerProcess([*self._command("nsqd"), *words])

    def nsqlookupd(self, *flags: str) -> Server:
        """Return an nsqlookupd that is not started yet."""
        words = [*_COMMON, *flags]
        if self.name == IN_PROCESS:
            return OwnServer(lambda: NsqlookupdServer(**_keywords(words)))
        return ServerProcess([*self._command("nsqlookupd"), *words])

    def _command(self, name: str) -> list[str]:
        return [self.binary] if self.binary else [sys.executable, "-m", "nsqkit", name]


def _keywords(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a server in this process for flags of the form ``--name=value``."""
    pairs = (word.removeprefix("--").partition("=") for word in words)
    return {flag.replace("-", "_"): int(text) if text.isdigit() else text for flag, _, text in pairs}


StartNsqd: TypeAlias = Callable[..., Server]
"""Called with flags; returns an nsqd that runs until the test has ended."""
