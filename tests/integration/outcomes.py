"""One cell of the table of outcomes: a program with one kind of handler, one outcome of it, and one way to end.

Two messages are published. A handler begins the first and waits; the second waits for the handler. Then the end comes,
and after it the handler goes on. ``play`` runs that as a real program, on a real broker, and returns what became of it.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import trio

from nsqkit import BlockingConsumer, BlockingProducer, Consumer
from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.topics.channel import Channel
from nsqkit.consumer.stop_signals import LoopCaller
from nsqkit.errors import MessageError
from nsqkit.testing.servers import NsqdServer
from tests.threads import WAIT_LIMIT, start, until

ASYNC_KINDS: Final = ("async", "plain", "threads", "batches", "lanes", "async for")
BLOCKING_KINDS: Final = ("blocking", "blocking threads")
OUTCOMES: Final = ("returns", "raises", "hangs", "late", "answers", "answers twice", "awaitable")
ENDS: Final = ("stop", "leave", "cancel", "ctrl-c", "sigterm", "lost", "restart")

MSG_TIMEOUT: Final = 0.5
"""Seconds, where a message has to time out."""


@attrs.frozen
class Cell:
    """One cell.

    Attributes:
        kind: how messages are received.
        outcome: how the handler ends its first call. All later calls return.
        end: how the program ends, or what happens to the connection.
        runner: ``asyncio`` or ``trio``; the blocking kinds have none.
    """

    kind: str
    outcome: str
    end: str
    runner: str = ""

    @property
    def keeps_loop(self) -> bool:
        """Whether the handler keeps the event loop while it waits."""
        return self.kind == "plain" and self.outcome != "awaitable"

    @property
    def is_interrupted(self) -> bool:
        """Whether the end ends the first call of the handler itself."""
        is_cancellable = self.kind in {"async", "batches", "lanes", "async for"} or (
            self.kind == "plain" and not self.keeps_loop
        )
        if self.end == "cancel":
            return is_cancellable
        if self.end == "ctrl-c":
            # asyncio cancels the main task; trio and a BlockingConsumer raise KeyboardInterrupt in the main thread.
            return is_cancellable or self.kind == "blocking" or (self.kind == "plain" and self.runner == "trio")
        return self.kind == "async for" and self.end == "leave"


@attrs.frozen
class Result:
    """The outcome for the two messages.

    Attributes:
        calls: how often each was handled.
        left: how many the broker still has.
        finished: messages that the consumer counts as finished.
    """

    calls: Counter[bytes]
    left: int
    finished: int


class Proxy:
    """Forwards TCP connections, and cuts them on demand."""

    def __init__(self, target: Callable[[], str]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: set[socket.socket] = set()
        self.address = "{}:{}".format(*self._listener.getsockname())
        start(self._accept)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                host, port = self._target().split(":")
                try:
                    far = socket.create_connection((host, int(port)))
                except OSError:
                    near.close()
                    continue
                self._sockets |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    start(self._forward, source, sink)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut all connections."""
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut all connections and accept no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for each in self._sockets:
            each.close()


class Play:
    """One run of a cell."""

    def __init__(self, cell: Cell, data_path: Path) -> None:
        self.cell = cell
        self.calls: Counter[bytes] = Counter()
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.leave = threading.Event()
        self.both_published = threading.Event()  # or nothing more is
        self.is_over = threading.Event()
        times_out = cell.outcome == "late" or cell.end == "lost"
        self._options: dict[str, Any] = {
            "data_path": str(data_path),
            **({"msg_timeout": MSG_TIMEOUT} if times_out else {}),
        }
        self._server = NsqdServer(**self._options).__enter__()
        self._proxy = Proxy(lambda: self._server.tcp_address)
        self._main_thread = threading.get_ident()
        self._act: Callable[[str], object] = lambda what: None
        self.consumer: Consumer | BlockingConsumer
        self.options: dict[str, Any] = {
            "nsqd_tcp_addresses": [self._proxy.address],
            "max_in_flight": 2,
            "max_backoff_duration": 0,
            "default_requeue_delay": 60,
            "reconnect_delay_max": 0.1,
            "close_timeout": 0.2 if cell.outcome == "hangs" else 10,
            "stop_signals": [signal.SIGTERM] if cell.end == "sigterm" else [],
        }

    # ---- the handler ---------------------------------------------------------------------------------------------

    def before(self, message: Any) -> bool:
        """Begin a call; return whether it is the first one, which is the one that is tested."""
        self.calls[message.body] += 1
        if message.body != b"1" or self.calls[b"1"] > 1:
            return False
        self.first = message
        if self.cell.outcome in {"answers", "answers twice"}:
            message.finish()
        self.begun.set()
        return True

    def after(self, message: Any) -> None:
        """End the first call."""
        if self.cell.outcome == "raises":
            raise ValueError("as the cell says")
        if self.cell.outcome == "answers twice":
            message.finish()

    async def wait(self) -> None:
        """Wait at the gate, in the event loop."""
        gate = self._async_gate = anyio.Event()
        if self.gate.is_set():
            return
        await gate.wait()

    async def async_handler(self, message: Any) -> None:
        if self.before(message):
            await self.wait()
            self.after(message)

    def plain_handler(self, message: Any) -> Any:
        if self.cell.outcome == "awaitable" and self.cell.kind == "plain":
            return self.async_handler(message)
        if self.before(message):
            self.gate.wait(WAIT_LIMIT)
            if self.cell.outcome == "awaitable":
                return self._nothing()
            self.after(message)
        return None

    async def _nothing(self) -> None: ...

    async def batch_handler(self, batch: list[Any]) -> None:
        for message in batch:
            await self.async_handler(message)

    # ---- the director: what happens from outside, in a separate thread -------------------------------------------

    def direct(self) -> None:
        """Publish, cause the end while the handler waits, and let it continue."""
        try:
            with BlockingProducer(self._server.tcp_address) as producer:
                producer.publish("t", b"1")
                assert self.begun.wait(WAIT_LIMIT), "the handler was not called"
                is_answered = self.cell.outcome in {"answers", "answers twice"}
                if is_answered and not self.cell.keeps_loop:  # which keeps the loop, so that nothing is sent
                    until(lambda: self.count(lambda channel: channel.in_flight_count) == 0)
                producer.publish("t", b"2")
                self.both_published.set()
                until(lambda: self.count(lambda channel: channel.in_flight_count + len(channel.queue)) >= 1)
                if not self.cell.keeps_loop:
                    until(lambda: self.is_over.is_set() or self.count(lambda channel: len(channel.queue)) == 0)
                if self.cell.kind == "blocking threads":  # the other thread handles the second message
                    until(lambda: self.count(lambda channel: channel.in_flight_count) == (not is_answered))
            self._bring_end()
            goes_on = self.cell.end in {"lost", "restart"}
            if self.cell.is_interrupted:
                return
            if self.cell.outcome == "hangs":
                if goes_on:
                    self._act("stop")
                if self.cell.kind in {"blocking", "async for"}:  # nothing can end the program's own code
                    until(lambda: self.count(lambda channel: len(channel.queue)) == 2 or self.is_over.is_set())
                    self.open_gate()
                return
            if self.cell.outcome == "late" and not goes_on:
                until(lambda: self._has_timed_out() or self.is_over.is_set())
            self.open_gate()
            if goes_on:
                until(lambda: self.left() == 0 or self.is_over.is_set())
                self._act("stop")
        except BaseException:
            self.both_published.set()
            self._act("stop")
            self.open_gate()
            raise

    def _has_timed_out(self) -> bool:
        """Return whether the first message has timed out at both ends."""
        message = getattr(self.first, "delivery", None) or getattr(self.first, "_message", self.first)
        return message.deadline_ns < 0 and self.count(lambda channel: channel.timeout_count) >= 1

    def _bring_end(self) -> None:
        match self.cell.end:
            case "ctrl-c":
                signal.pthread_kill(self._main_thread, signal.SIGINT)
            case "sigterm":
                signal.pthread_kill(self._main_thread, signal.SIGTERM)
            case "lost":
                self._proxy.cut()
            case "restart":
                self._server.__exit__(None, None, None)
                self._server = NsqdServer(**self._options).__enter__()
            case end:
                self._act(end)

    def open_gate(self) -> None:
        self.gate.set()
        self._act("gate")

    def count(self, look: Callable[[Channel], int]) -> int:
        def look_at(broker: Broker) -> int:
            topic = broker.topics.get(b"t")
            return look(topic.channels[b"c"]) if topic is not None and b"c" in topic.channels else 0

        return self._server.inspect(look_at)

    def left(self) -> int:
        """Return how many messages the broker has."""
        return self.count(lambda channel: len(channel.queue) + len(channel.deferred) + channel.in_flight_count)

    # ---- the program ---------------------------------------------------------------------------------------------

    async def async_program(self) -> None:
        call_soon = LoopCaller()
        left, scope = anyio.Event(), anyio.CancelScope()
        consumer = self.consumer = Consumer("t", "c", **self.options)

        def act(what: str) -> None:
            actions = {
                "stop": consumer.stop,
                "leave": left.set,
                "cancel": scope.cancel,
                "gate": self._open_async_gate,
            }
            with suppress(RuntimeError, trio.RunFinishedError):
                call_soon(actions[what])

        self._act = act
        directing = start(self.direct)
        if self.cell.end == "leave" and self.cell.kind != "async for":
            async with anyio.create_task_group() as tasks, consumer:
                tasks.start_soon(self._receive, consumer)
                await left.wait()
        else:
            with scope:
                async with consumer:
                    await self._receive(consumer)
        self.directing = directing

    def _open_async_gate(self) -> None:
        self.gate.set()
        if hasattr(self, "_async_gate"):
            self._async_gate.set()

    async def _receive(self, consumer: Consumer) -> None:
        match self.cell.kind:
            case "async":
                await consumer.run(self.async_handler)
            case "plain":
                await consumer.run(self.plain_handler)
            case "threads":
                await consumer.run(self.plain_handler, in_threads=True)
            case "batches":
                await consumer.run_batches(self.batch_handler, max_messages=1)
            case "lanes":
                await consumer.run(self.async_handler, key=lambda message: 0, concurrency=2)
            case "async for":
                await self._iterate(consumer)

    async def _iterate(self, consumer: Consumer) -> None:
        async for message in consumer:
            first = self.before(message)
            if first and self.cell.end == "leave":
                return
            if first:
                await self.wait()
                self.after(message)
            if not message.is_answered:
                message.finish()

    def blocking_program(self) -> None:
        consumer = self.consumer = BlockingConsumer("t", "c", **self.options)
        options: dict[str, Any] = {"concurrency": 2} if self.cell.kind == "blocking threads" else {}

        def act(what: str) -> None:
            if what == "stop":
                with suppress(Exception):
                    consumer.stop()
            elif what == "leave":
                self.leave.set()

        self._act = act
        self.directing = start(self.direct)
        with consumer:
            if self.cell.end == "leave":
                running = start(partial(consumer.run, self.plain_handler, **options))
                assert self.leave.wait(WAIT_LIMIT)
            else:
                consumer.run(self.plain_handler, **options)
        if self.cell.end == "leave" and self.cell.outcome != "hangs":
            running.result(WAIT_LIMIT)

    def _run_program(self) -> None:
        if not self.cell.runner:
            self.blocking_program()
        elif self.cell.runner == "trio":
            trio.run(self.async_program)
        else:
            asyncio.run(self.async_program())

    def run(self) -> Result:
        """Run the program to its end and return the outcome."""
        try:
            try:
                with interruptible():
                    self._run_program()
            except* (KeyboardInterrupt, ValueError, MessageError):
                pass  # trio raises groups
            assert self.both_published.wait(WAIT_LIMIT)  # a program that is left at once may end before that
            self.is_over.set()
            self.open_gate()
            until(lambda: self.count(lambda channel: channel.in_flight_count) == 0)
            return Result(self.calls, self.left(), self.consumer.stats().finished)
        finally:
            self.is_over.set()
            self.gate.set()
            self._proxy.close()
            self._server.__exit__(None, None, None)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt, as in a program."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def play(cell: Cell, data_path: Path) -> Result:
    """Run one cell."""
    return Play(cell, data_path).run()
