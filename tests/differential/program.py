"""The two programs that are compared: processes with nsqd's flags, on free ports, with the same options."""

from __future__ import annotations

import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from nsqkit.program.version import version_line
from nsqkit.wire.identify import BROKER_VERSION

START_LIMIT: Final = 30.0
"""Seconds in which a program has to listen."""

STOP_LIMIT: Final = 30.0
"""Seconds in which a program has to exit."""

_LISTENING: Final = re.compile(r"\b(TCP|HTTP): listening on (\S+):(\d+)")
_COMMON: Final = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--broadcast-address=127.0.0.1")
_NSQD: Final = ("--node-id=1", "--statsd-prefix=differential")


class ProgramError(Exception):
    """A program that cannot be compared; the text is one sentence."""


def own_command(program: str) -> list[str]:
    """Return the command line of nsqkit's program."""
    return [sys.executable, "-m", "nsqkit", program]


def check_version(program: str, command: Sequence[str]) -> None:
    """Refuse a program that is not the one of version 1.3.

    Raises:
        ProgramError: it is not there, or is another program or version.
    """
    try:
        run = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=START_LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProgramError(f"{command[0]} cannot be run: {error}") from error
    line = run.stdout.strip().partition("\n")[0]
    expected = version_line(program).partition(" (")[0]
    if line.partition(" (")[0] != expected:
        raise ProgramError(f"{command[0]} is not {program} of version {BROKER_VERSION}: its version line is {line!r}")


class Program:
    """A program that runs until ``stop``.

    Args:
        program: nsqd or nsqlookupd.
        command: its command line without flags.
        options: flags by name.
        data_path: of nsqd.

    Attributes:
        data_path: where nsqd stores messages; it may be replaced while the program is stopped.
    """

    def __init__(self, program: str, command: Sequence[str], options: Mapping[str, str], data_path: Path) -> None:
        self._command = [*command, *_COMMON, *(f"--{name}={value}" for name, value in options.items())]
        self._has_data = program == "nsqd"
        self.data_path = data_path
        self._log = Path(tempfile.mkdtemp(prefix="differential-")) / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._addresses: dict[str, tuple[str, int]] = {}

    def start(self) -> None:
        """Start the program; return when it listens.

        Raises:
            ProgramError: it has exited, or does not listen in START_LIMIT seconds.
        """
        words = [*self._command, *_NSQD, f"--data-path={self.data_path}"] if self._has_data else self._command
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        limit = time.monotonic() + START_LIMIT
        while len(self._addresses) < 2:
            if self._process.poll() is not None or time.monotonic() > limit:
                raise ProgramError(f"{self._command[0]} does not listen: {self.output()[-2000:]}")
            select.select([], [], [], 0.01)
            self._addresses = {found[1]: (found[2], int(found[3])) for found in _LISTENING.finditer(self.output())}

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not exited."""
        return self._process is not None and self._process.poll() is None

    @property
    def tcp(self) -> tuple[str, int]:
        """The host and port of its protocol."""
        return self._addresses["TCP"]

    @property
    def http(self) -> tuple[str, int]:
        """The host and port of its HTTP server."""
        return self._addresses["HTTP"]

    def output(self) -> str:
        """Return its log since the start."""
        return self._log.read_text("utf-8", "replace")

    def stop(self) -> None:
        """Stop the program by SIGTERM.

        Raises:
            ProgramError: it has exited with an error, or does not exit in STOP_LIMIT seconds.
        """
        process, self._process, self._addresses = self._process, None, {}
        if process is None:
            return
        process.terminate()
        try:
            status = process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ProgramError(f"{self._command[0]} does not exit after SIGTERM") from None
        if status:
            raise ProgramError(f"{self._command[0]} has exited with status {status}: {self.output()[-2000:]}")

    def remove(self) -> None:
        """Stop the program, and remove its log."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self._log.parent, ignore_errors=True)
