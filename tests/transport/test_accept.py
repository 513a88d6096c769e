from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute

from nsqkit.clock import LoopClock, ManualClock
from nsqkit.transport.accept import accept, remote_address
from nsqkit.transport.memory import memory_pair
from nsqkit.transport.tcp import connect_tcp, listen

pytestmark = pytest.mark.anyio

logger = logging.getLogger("nsqkit.test")


async def test_each_connection_is_served_in_its_own_task():
    seen = []
    both_came = anyio.Event()

    async def serve(stream: Any) -> None:
        async with stream:
            seen.append(remote_address(stream))
            if len(seen) == 2:
                both_came.set()
            await both_came.wait()

    with anyio.fail_after(60):
        async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(accept, listener, serve, tasks, logger, LoopClock())
            async with await connect_tcp(*listener.local_address) as one:
                async with await connect_tcp(*listener.local_address) as other:
                    await both_came.wait()
                    ours = {each.extra(SocketAttribute.local_address) for each in (one, other)}
            tasks.cancel_scope.cancel()
    assert set(seen) == {"{}:{}".format(*address) for address in ours}


async def test_failed_accept_does_not_end_server(caplog):
    class Exhausted:
        """A listener that fails twice, as when too many files are open: directly and in a task."""

        def __init__(self) -> None:
            self.serve_count = 0
            self.recovered = anyio.Event()

        async def serve(self, handler: Any, tasks: Any) -> None:
            self.serve_count += 1
            if self.serve_count == 3:
                self.recovered.set()
            if self.serve_count == 1:
                raise OSError(24, "Too many open files")
            async with anyio.create_task_group() as children:
                if self.serve_count == 2:
                    children.start_soon(self.fail)

        async def fail(self) -> None:
            raise OSError(24, "Too many open files")

    async def refuse(stream: Any) -> None:
        raise AssertionError(stream)

    listener: Any = Exhausted()
    clock = ManualClock()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept, listener, refuse, tasks, logger, clock)
            while not listener.recovered.is_set():
                await anyio.wait_all_tasks_blocked()
                clock.advance(0.05)
            tasks.cancel_scope.cancel()
    assert caplog.messages == ["accept failed - [Errno 24] Too many open files"] * 2


class Stream:
    def __init__(self, address: object) -> None:
        self.address = address

    def extra(self, attribute: object, default: object) -> object:
        return self.address


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (("10.0.0.1", 9), "10.0.0.1:9"),
        (("::1", 9, 0, 0), "[::1]:9"),
        (("::ffff:10.0.0.1", 9, 0, 0), "10.0.0.1:9"),
        ("/run/nsqd.sock", "/run/nsqd.sock"),
    ],
)
def test_remote_address_formats(address, text):
    stream: Any = Stream(address)
    assert remote_address(stream) == text


async def test_lost_connection_has_no_address():
    ours, theirs = memory_pair()
    assert remote_address(ours) == ":0"
    await ours.aclose()
    await theirs.aclose()


async def test_error_in_handler_does_not_end_server(caplog):
    async def serve(stream: Any) -> None:
        if await stream.receive() == b"bad":
            raise KeyError("a bug")
        await stream.send(b"good")
        await stream.aclose()

    with anyio.fail_after(60):
        async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(accept, listener, serve, tasks, logger, LoopClock())
            for sent, answer in ((b"bad", b""), (b"good", b"good")):
                async with await connect_tcp(*listener.local_address) as client:
                    await client.send(sent)
                    try:
                        assert await client.receive() == answer
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        assert not answer
            tasks.cancel_scope.cancel()
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.getMessage().endswith("] - internal error")
