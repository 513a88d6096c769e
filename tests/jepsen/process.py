"""A broker as a process, over all its lives: its command, data path, signals and limits."""

from __future__ import annotations

import json
import resource
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from nsqkit.testing.ports import KeptPort
from nsqkit.transport.address import split_address

TOPIC: Final = "t"
START_LIMIT_S: Final = 30.0
STOP_LIMIT_S: Final = 60.0
DISK_SIZE: Final = "64m"

AT_ANOTHER_TIME: Final = """
import sys, time
offset_ns, real = int(sys.argv.pop(1)), time.time_ns
time.time_ns = lambda: real() + offset_ns
from nsqkit.__main__ import main
sys.exit(main())
"""


class BrokerFailed(Exception):
    """A broker does not start or stop, or is another program."""


class DataPath:
    """A directory, on a small disk of its own where the system permits a mount.

    Args:
        path: a directory that does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_mounted = False
        path.mkdir()

    def mount(self) -> None:
        """Mount a small disk if it is permitted."""
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "nsq", str(self.path)]
        with suppress(OSError):
            self.is_mounted = subprocess.run(words, check=False, capture_output=True).returncode == 0

    def unmount(self) -> None:
        """Undo ``mount``."""
        if self.is_mounted:
            subprocess.run(["umount", str(self.path)], check=True, capture_output=True)
            self.is_mounted = False

    def fill(self) -> None:
        """Leave no space on the disk."""
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(512))

    def release(self) -> None:
        """Free the space."""
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"


class BrokerProcess:
    """One broker at one address.

    Args:
        command: how it is started; ``{flags}`` is where its flags go.
        directory: a new directory for its data path and its log.
        channels: of its topic, which exist from the beginning.
        flags: more flags.

    Attributes:
        port: where it listens.
        life: how often it was started before.
        data_path: its files.
    """

    def __init__(self, command: str, directory: Path, channels: Sequence[str], flags: Sequence[str]) -> None:
        directory.mkdir()
        self._ports = [KeptPort("127.0.0.1:0") for _ in range(2)]  # on Linux, the broker can listen there meanwhile
        self.port, self._http_port = (split_address(port.address)[1] for port in self._ports)
        self.life = -1
        self.data_path = DataPath(directory / "data")
        self._channels = channels
        self._log = directory / "log"
        self._command = command_words(command)
        self._flags = [
            f"--tcp-address=127.0.0.1:{self.port}",
            f"--http-address=127.0.0.1:{self._http_port}",
            f"--data-path={self.data_path.path}",
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Mount its disk, and name the topic and the channels there."""
        self.data_path.mount()
        channels = [{"name": name, "paused": False} for name in self._channels]
        document = {"topics": [{"name": TOPIC, "paused": False, "channels": channels}], "version": "1.3.0"}
        (self.data_path.path / "nsqd.dat").write_text(json.dumps(document))

    @property
    def can_shift_clock(self) -> bool:
        """Whether it can be started at another time of day: nsqkit can, a compiled program cannot."""
        return self._command[:3] == [sys.executable, "-m", "nsqkit"]

    async def start(self, offset_s: int = 0) -> None:
        """Start it, and return when it accepts connections.

        Args:
            offset_s: the difference of its clock from the real time.

        Raises:
            BrokerFailed: it does not.
        """
        words = list(self._command)
        if offset_s:
            words[1:3] = ["-c", AT_ANOTHER_TIME, str(offset_s * 10**9)]
        at = words.index("{flags}")
        words[at : at + 1] = self._flags
        with self._log.open("ab") as log:
            try:
                self._process = subprocess.Popen(words, stdout=log, stderr=log)  # noqa: ASYNC220 - quick
            except OSError as error:
                raise BrokerFailed(f"{words[0]} cannot be started: {error.strerror}") from error
        self.life += 1
        with anyio.move_on_after(START_LIMIT_S):
            while self._process.poll() is None:
                with suppress(OSError):
                    for port in (self.port, self._http_port):  # nsqd opens the second one a moment later
                        await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    return
                await self._wait(0.02)
        status = self._process.poll()
        reason = "does not listen" if status is None else f"ended with status {status}"
        raise BrokerFailed(f"the broker {reason}: {self.last_words()}")

    async def check_version(self) -> None:
        """Raise BrokerFailed unless it is compatible with nsqd 1.3."""
        try:
            version = (await self._get("/info"))["version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BrokerFailed(f"it has no /info of nsqd: {error}") from error
        if not version.startswith("1.3."):
            raise BrokerFailed(f"it is version {version} of nsqd, and 1.3 is needed")

    async def left(self) -> dict[str, int]:
        """Return by channel the number of messages that it has."""
        document = await self._get("/stats?format=json")
        return {
            channel["channel_name"]: topic["depth"]
            + channel["depth"]
            + channel["in_flight_count"]
            + channel["deferred_count"]
            for topic in document["topics"]
            for channel in topic["channels"]
        }

    async def _get(self, target: str) -> Any:
        url = f"http://127.0.0.1:{self._http_port}{target}"

        def read() -> Any:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)

        return await anyio.to_thread.run_sync(read)

    def last_words(self) -> str:
        """Return the last line of its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "its log is empty"

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    async def kill(self) -> None:
        """End it in the middle of its work."""
        assert self._process is not None
        self._process.kill()
        await anyio.to_thread.run_sync(self._process.wait)

    async def terminate(self) -> None:
        """Stop it.

        Raises:
            BrokerFailed: it does not stop, or not with status 0.
        """
        assert self._process is not None
        self._process.terminate()
        await self._wait(STOP_LIMIT_S)
        if self.status != 0:
            raise BrokerFailed(f"the broker stopped with status {self.status}: {self.last_words()}")

    async def _wait(self, seconds: float) -> None:
        """Return after some time, or when the process has ended."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            await anyio.to_thread.run_sync(partial(self._process.wait, seconds))

    def suspend(self) -> None:
        """Stop the process (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def limit_files(self, more: int) -> None:
        """Let it open only a few more files than it has now."""
        assert self._process is not None
        now = max(int(entry.name) for entry in Path(f"/proc/{self._process.pid}/fd").iterdir())
        self._limit(resource.RLIMIT_NOFILE, now + 1 + more)

    def limit_file_size(self, size: int) -> None:
        """Let no file become larger."""
        self._limit(resource.RLIMIT_FSIZE, size)

    def unlimit(self) -> None:
        """Undo the limits."""
        for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
            self._limit(name, resource.getrlimit(name)[0])

    def _limit(self, name: int, value: int) -> None:
        assert self._process is not None
        hard = resource.prlimit(self._process.pid, name)[1]
        resource.prlimit(self._process.pid, name, (value, hard))

    def end(self) -> None:
        """End it in any state, and free its disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.data_path.unmount()


def command_words(command: str) -> list[str]:
    """Return the words of a command, with this Python for ``python``, and with a place for the flags."""
    words = shlex.split(command)
    if words[:1] == ["python"]:
        words[0] = sys.executable
    return words if "{flags}" in words else [*words, "{flags}"]
