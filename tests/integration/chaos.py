"""Brokers that are killed, stopped and disconnected while clients use them.

All faults follow from a seed, as far as the machine allows it. A broker keeps its address and its data path over all
restarts, and loses nothing that it has acknowledged (``--durability=fsync``). Its port does not follow from the seed:
two runs at the same time would have the same one.

``BrokerProcess`` is one broker over all its restarts; ``Wire`` is the path to it, which can be cut at any byte.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

import anyio
from anyio.abc import ByteStream, SocketStream

from nsqkit.testing.ports import KeptPort
from nsqkit.transport.address import split_address


class BrokerProcess:
    """One broker at one address, over all its restarts.

    Args:
        path: its data path.

    Attributes:
        address: where it listens.
    """

    def __init__(self, path: Path) -> None:
        self._port = KeptPort("127.0.0.1:0")
        self.address = self._port.address
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        path.mkdir()

    async def start(self) -> None:
        """Start it; return when it accepts connections."""
        command = [
            sys.executable,
            "-m",
            "nsqkit",
            "nsqd",
            f"--tcp-address={self.address}",
            "--http-address=",
        ]
        flags = [f"--data-path={self._path}", "--durability=fsync", "--msg-timeout=3s", "--log-level=fatal"]
        self._port.release()
        self._process = subprocess.Popen([*command, *flags])  # noqa: ASYNC220 - quick, and its pid is needed
        while True:
            assert self._process.poll() is None, "the broker did not start"
            try:
                stream = await anyio.connect_tcp(*split_address(self.address))
            except OSError:
                await self._run_for(0.02)
            else:
                await stream.aclose()
                return

    async def kill(self) -> None:
        """Kill it, in the middle of its work."""
        assert self._process is not None
        self._process.kill()
        await anyio.to_thread.run_sync(self._process.wait)
        self._port.keep()

    async def stall(self, seconds: float) -> None:
        """Stop its process for a while (SIGSTOP)."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            await self._run_for(seconds)
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    async def _run_for(self, seconds: float) -> None:
        """Return after some time, or when the process has ended."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            await anyio.to_thread.run_sync(partial(self._process.wait, seconds))

    def end(self) -> None:
        """End it, in any state."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Wire:
    """A path to one broker, which forwards bytes until it is cut.

    Args:
        broker_address: where the broker listens.
        random: decides after how many bytes a cut takes effect.

    Attributes:
        address: where clients connect.
    """

    def __init__(self, broker_address: str, random: Random) -> None:
        self.address = ""
        self._broker_address = broker_address
        self._random = random
        self._scopes: dict[anyio.CancelScope, list[int]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Wire]:
        """Accept connections during the block."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        async with listener, anyio.create_task_group() as tasks:
            self.address = f"127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
            tasks.start_soon(listener.serve, self._carry)
            yield self
            tasks.cancel_scope.cancel()

    def cut(self) -> None:
        """Close every connection after a few more bytes, often in the middle of a frame."""
        for left in self._scopes.values():
            left[0] = self._random.randrange(200)

    async def _carry(self, client: SocketStream) -> None:
        left = [1 << 62]
        try:
            broker = await anyio.connect_tcp(*split_address(self._broker_address))
        except OSError:
            await anyio.aclose_forcefully(client)
            return
        try:
            async with anyio.create_task_group() as tasks:
                self._scopes[tasks.cancel_scope] = left
                tasks.start_soon(self._copy, client, broker, tasks.cancel_scope, left)
                tasks.start_soon(self._copy, broker, client, tasks.cancel_scope, left)
        finally:
            self._scopes.pop(tasks.cancel_scope, None)
            await anyio.aclose_forcefully(client)
            await anyio.aclose_forcefully(broker)

    @staticmethod
    async def _copy(source: ByteStream, target: ByteStream, scope: anyio.CancelScope, left: list[int]) -> None:
        try:
            async for data in source:
                await target.send(data[: left[0]])
                left[0] -= len(data)
                if left[0] <= 0:
                    break
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        scope.cancel()
