"""The nsqd of a test server as a process of its own: nsqkit's, or any program with nsqd's flags."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import finalize

import anyio
import anyio.to_thread
import attrs

from nsqkit.errors import OptionError
from nsqkit.testing.errors import StartFailed, Unsupported
from nsqkit.testing.external import ExternalNsqd
from nsqkit.testing.options import HOST, flag_words
from nsqkit.testing.ports import KeptPort
from nsqkit.transport.address import port_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqkit.broker.core.options import BrokerOptions

START_LIMIT: Final = 20.0
"""Real seconds in which a process has to answer."""

STOP_LIMIT: Final = 20.0
"""Real seconds in which a process has to end after SIGTERM, before it is killed."""

OUTPUT_SIZE_MAX: Final = 2000
"""Characters of the output's end in an error."""

UNKNOWN_FLAG: Final = "flag provided but not defined"
"""Go's words, and nsqkit's, for a flag that a program does not have."""


def default_command() -> list[str]:
    """Return the command line of the environment variable ``NSQD``, which names a program, or that of nsqkit's nsqd."""
    program = os.environ.get("NSQD", "")
    return [program] if program else [sys.executable, "-m", "nsqkit", "nsqd"]


class ProcessNsqd(ExternalNsqd):
    """A backend (``nsqkit.testing.backend.Backend``): a process.

    Its messages are in a temporary directory, unless ``data_path`` names one: then its files decide what a start begins
    with.

    Args:
        options: nsqd's flags; those with nsqd's default are not passed.
        command: the program and its first words.
    """

    def __init__(self, options: BrokerOptions, command: Sequence[str]) -> None:
        super().__init__("process")
        if not options.http_address:
            raise OptionError("http_address is empty; the backend 'process' needs HTTP, so allowed is host:port")
        self._options = options
        self._command = list(command)
        self._port = KeptPort(f"{HOST}:0")
        self._owned = _Owned()
        finalize(self, self._owned.end)

    async def start(self, tcp_address: str, http_port: KeptPort, *, keep_data: bool) -> None:
        """Start a process, and return when it answers.

        Raises:
            StartFailed: it has ended, or does not answer.
            Unsupported: it does not have one of the flags.
        """
        path = self._options.data_path or self._owned.make_data_path(keep_data=keep_data)
        self.tcp_address, self.http_address = self._port.address, http_port.address
        options = attrs.evolve(
            self._options,
            tcp_address=self.tcp_address,
            http_address=self.http_address,
            broadcast_tcp_port=self._options.broadcast_tcp_port or max(port_of(tcp_address), 0),
            data_path=path,
        )
        self._port.release()
        http_port.release()
        try:
            self._owned.start([*self._command, *flag_words(options)])
            await self.wait_answers(START_LIMIT, self._check_runs)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.kill()
            raise

    def _check_runs(self) -> None:
        status = self._owned.status
        if status is None:
            return
        output = self._owned.output()
        # A usage text of any length follows that line.
        first_line = output.partition("\n")[0]
        if UNKNOWN_FLAG in first_line:
            raise Unsupported(f"{self._command[0]} does not have one of the options: {first_line}")
        raise StartFailed(f"{self._command[0]} has ended with status {status}:\n{output[-OUTPUT_SIZE_MAX:]}")

    async def stop(self, *, keep_data: bool) -> None:
        """Have the process end by SIGTERM."""
        self._owned.signal(signal.SIGTERM)
        with anyio.move_on_after(STOP_LIMIT):
            await anyio.to_thread.run_sync(self._owned.wait, abandon_on_cancel=True)
        await self.kill()

    async def kill(self) -> None:
        """End the process by SIGKILL."""
        self._owned.signal(signal.SIGKILL)
        await anyio.to_thread.run_sync(self._owned.wait)
        self._port.keep()


class _Owned:
    """A process and a temporary directory, which end with the program if not before."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs, 0 if there is none."""
        return 0 if self._process is None else self._process.poll()

    def make_data_path(self, *, keep_data: bool) -> str:
        """Return a directory for messages, with those of the last run or without."""
        path = self._directory_path() / "data"
        if not keep_data:
            shutil.rmtree(path, ignore_errors=True)
        path.mkdir(exist_ok=True)
        return str(path)

    def _directory_path(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="nsqd-"))
        return self._directory

    def start(self, words: Sequence[str]) -> None:
        """Start a process whose output goes to a file."""
        with (self._directory_path() / "output").open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            except OSError as error:
                raise StartFailed(f"{words[0]} cannot be started: {error.strerror or error}") from error

    def output(self) -> str:
        """Return the output."""
        return (self._directory_path() / "output").read_text("utf-8", "replace").strip()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self) -> None:
        """Return when the process has ended."""
        if self._process is not None:
            self._process.wait()

    def end(self) -> None:
        """Kill the process, and delete the directory; do nothing in a forked process."""
        if os.getpid() != self._pid:
            return
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
