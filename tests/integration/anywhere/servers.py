"""nsqd and nsqlookupd in three forms: in this process, as a process, and as a program that was named.

The rule it guards: a test cannot tell them apart. All are configured by nsqd's flags, listen on free ports, answer when
``start`` has returned, and can be killed and started again with what they have kept on disk.

How to read it: ``Server`` is what a test has; ``OwnServer`` and ``ServerProcess`` are the forms, and ``Kind`` makes one
or the other.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Final, Protocol, TypeAlias

import attrs

from nsqkit.broker.core.options import OPTIONS
from nsqkit.lookupd.options import OPTIONS as LOOKUPD_OPTIONS
from nsqkit.options.flags import parse_flags
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer

PATIENCE: Final = 60.0
"""Seconds after which what is waited for will not come any more."""

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
        """``host:port`` where it listens; another one after each start."""
        ...

    @property
    def http_address(self) -> str:
        """Likewise, of the HTTP routes."""
        ...

    def start(self) -> None:
        """Have it run; return when it listens."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def stop(self) -> None:
        """Ask it to end, and return when it has, without a fault."""
        ...

    def said(self) -> str:
        """Return what it has printed since it was last asked."""
        ...


class OwnServer:
    """Ours, in a thread of this process. It cannot be killed without the test, so ``kill`` is ``stop``."""

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

    def said(self) -> str:
        return ""


class ServerProcess:
    """A program, ours or another, with what it prints."""

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
            self._heard.wait_for(lambda: len(self._listening) == 2 or self._at_its_end, PATIENCE)
        assert len(self._listening) == 2, f"it does not listen: {self.said()}"

    def kill(self) -> None:
        self._end(subprocess.Popen.kill)

    def stop(self) -> None:
        status = self._end(subprocess.Popen.terminate)
        assert status in {0, None}, f"it has ended with status {status}"

    def said(self) -> str:
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
                return process.wait(PATIENCE)
            finally:
                process.kill()  # if it has not ended, for then the ear would hear on
                self._ear.join()

    def _listen(self, pipe: IO[str]) -> None:
        with suppress(ValueError):  # the pipe may be closed here
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
    """A form in which servers are had.

    Attributes:
        name: IN_PROCESS, PROCESS or BINARY.
        binary: the path of the program, of a BINARY.
    """

    name: str
    binary: str = ""

    def nsqd(self, data_path: Path, *flags: str) -> Server:
        """Return an nsqd that has not been started."""
        words = [*_COMMON, _HTTPS, f"--data-path={data_path}", *flags]
        if self.name == IN_PROCESS:
            return OwnServer(lambda: NsqdServer(**parse_flags(words, OPTIONS)))
        return ServerProcess([*self._command("nsqd"), *words])

    def nsqlookupd(self, *flags: str) -> Server:
        """Return an nsqlookupd that has not been started."""
        words = [*_COMMON, *flags]
        if self.name == IN_PROCESS:
            return OwnServer(lambda: NsqlookupdServer(**parse_flags(words, LOOKUPD_OPTIONS)))
        return ServerProcess([*self._command("nsqlookupd"), *words])

    def _command(self, name: str) -> list[str]:
        return [self.binary] if self.binary else [sys.executable, "-m", "nsqkit", name]


StartNsqd: TypeAlias = Callable[..., Server]
"""Called with flags; returns an nsqd that runs until the test has ended."""
