"""The threads of a world: real ones, of which one runs at any moment, as a baton is passed on where they wait.

Each thread has a task of the event loop, its companion. While the thread runs, the companion and with it the loop
stand still. Where the thread waits, it gives the companion something to await, and the loop runs. So the order of tasks
is also that of threads, time is that of the loop, and a world ends its threads by the end of their companions.

    thread    ── runs ──▶ ask ······················▶ runs ──▶
    companion ············· await, as all tasks ──▶ ··········

A thread can also lose the baton between two lines of the modules that threads share: ``share`` says how often. So can
the loop, in the middle of a callback, to a thread that has lost it so.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from random import Random
from types import CodeType, FrameType
from typing import Any, Final, TypeVar
from zlib import crc32

import anyio
from anyio.abc import TaskGroup

from nsqkit.consumer import batches, blocking_message, thread_receiver
from nsqkit.consumer import blocking as blocking_consumer
from nsqkit.loop_thread import blocking_client, loop_client, one_shot, provider, waker
from nsqkit.producer import blocking as blocking_producer
from nsqkit.producer import thread_lease
from tests.simulation.driver.network import HOST
from tests.simulation.driver.pace import pass_time

T = TypeVar("T")
Tracer = Callable[[FrameType, str, object], Any]

DELAYS: Final = (0.0, 0.0, 0.0002, 0.003)
"""Seconds until a thread that could run does so."""

SHARED: Final = frozenset(
    module.__file__
    for module in (
        *(batches, blocking_message, thread_receiver, blocking_consumer, blocking_producer, thread_lease),
        *(blocking_client, loop_client, one_shot, provider, waker),
    )
)
"""The files in which a thread can lose the baton between two lines."""

_local = threading.local()


class Ended(BaseException):
    """The world has ended; raised in a thread where it waits."""


class Threads:
    """The threads of a world.

    Args:
        tasks: those of the world.
        seed: begins the names of random generators.
        share: the part of the lines of ``SHARED`` before which a thread loses the baton.
    """

    def __init__(self, tasks: TaskGroup, seed: str, share: float) -> None:
        self.tasks = tasks
        self.share = share
        self.paused: dict[_Thread, None] = {}  # those that have lost the baton between two lines
        self._seed = seed
        self._counts: dict[str, int] = {}
        self._tracer = line_tracer(f"{seed}/loop", share, self._let_run)
        self._tracer_before = sys.gettrace()

    def pause(self, thread: _Thread) -> None:
        """Note that a thread has lost the baton between two lines: from now on, the loop can lose it, too."""
        self.paused[thread] = None
        sys.settrace(self._tracer)

    def resume(self, thread: _Thread) -> None:
        """Note that it has the baton again."""
        self.paused.pop(thread, None)
        if not self.paused:  # tracing takes much time
            sys.settrace(self._tracer_before)

    def _let_run(self, name: str) -> None:
        if self.paused:
            Random(name).choice(list(self.paused)).run_between()

    def key(self, name: str) -> str:
        """Return a name for a random generator of the present host, another one each time."""
        key = f"{HOST.get()}/{name}"
        number = self._counts[key] = self._counts.get(key, 0) + 1
        return f"{self._seed}/{key}/{number}"

    def random(self, name: str) -> Random:
        """Return another random generator of the present host."""
        return Random(self.key(name))

    async def run(self, function: Callable[[], T], name: str) -> T:
        """Run a function in a thread, whose companion is the present task, and return its result."""
        return await _Thread(self, name).run(function)


class _Thread:
    def __init__(self, threads: Threads, name: str) -> None:
        self.threads = threads
        self._key = threads.key(name)
        self._random = Random(self._key)
        self._tracer = line_tracer(self._key, threads.share, self._pause)
        self._name = name
        self._baton, self._companions_baton = threading.Lock(), threading.Lock()
        self._baton.acquire()
        self._companions_baton.acquire()
        self._request: Callable[[], Awaitable[object]] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None
        self._is_ending = False
        self._function: Callable[[], object] | None = None  # to be called in the thread of the loop
        self._context = contextvars.copy_context()  # that of the companion
        self._run_count = 0  # how often it has run while its companion waited for something else

    # ---- in the companion ------------------------------------------------------------------------------------------

    async def run(self, function: Callable[[], T]) -> T:
        target = partial(contextvars.copy_context().run, self._work, function)
        thread = threading.Thread(target=target, name=self._name, daemon=True)
        thread.start()
        self._companions_baton.acquire()
        cancellation: BaseException | None = None
        while (request := self._request) is not None or self._function is not None:
            called, self._request, self._function = self._function, None, None
            run_count, failure = self._run_count, None
            answer: object = None
            try:
                if request is not None:
                    answer = await request()
                elif called is not None:
                    answer = called()
            except Exception as error:
                failure = error
            except BaseException as error:
                cancellation, self._is_ending = error, True
            if self._run_count != run_count and (cancellation is None or self._request is None):
                continue  # it waits for something else by now, or has ended
            self._answer, self._error = answer, failure
            self._baton.release()
            self._companions_baton.acquire()
        thread.join()
        if cancellation is not None:
            raise cancellation
        if self._error is not None:
            raise self._error
        result: T = self._answer
        return result

    async def hop(self) -> None:
        """Let others run."""
        await hop(self._random)

    async def _stay_paused(self, random: Random) -> None:
        self.threads.pause(self)
        try:
            await hop(random)
        finally:
            self.threads.resume(self)

    def run_between(self) -> None:
        """Run the paused thread until it waits again, while a callback of the loop stands still."""
        self.threads.resume(self)
        self._run_count += 1
        self._answer = self._error = None
        while True:
            self._baton.release()
            self._companions_baton.acquire()
            if (function := self._function) is None:
                return
            self._function = self._error = None
            try:
                self._answer = self._context.run(function)
            except Exception as error:
                self._error = error

    # ---- in the thread ---------------------------------------------------------------------------------------------

    def _work(self, function: Callable[[], object]) -> None:
        _local.thread = self
        if self.threads.share:
            sys.settrace(self._tracer)
        try:
            self._answer, self._error = function(), None
        except BaseException as error:
            self._error = error
        finally:
            sys.settrace(None)
        self._request = None
        self._companions_baton.release()

    def ask(self, request: Callable[[], Awaitable[T]]) -> T:
        """Await something in the companion, and return its result or raise its error."""
        if not self._is_ending:
            self._request = request
        result: T = self._give_up()
        return result

    def call_at_once(self, function: Callable[[], T]) -> T:
        """Call something in the thread of the loop, and return its result or raise its error."""
        if not self._is_ending:
            self._function = function
        result: T = self._give_up()
        return result

    def _give_up(self) -> Any:
        if not self._is_ending:
            self._companions_baton.release()
            self._baton.acquire()
        if self._is_ending:
            raise Ended
        error, answer, self._answer, self._error = self._error, self._answer, None, None
        if error is not None:
            raise error
        return answer

    def _pause(self, name: str) -> None:
        self.ask(partial(self._stay_paused, Random(name)))


def line_tracer(key: str, share: float, on_line: Callable[[str], None]) -> Tracer:
    """Return a trace function that calls another function before some lines of ``SHARED``.

    Args:
        key: begins the names of random generators.
        share: the part of the lines.
        on_line: called with the name of a random generator.
    """
    limit = share * 2**32
    prefixes: dict[tuple[CodeType, int], tuple[str, int]] = {}  # of the names, and their checksums
    counts = Counter[str]()  # of the lines that were reached

    def trace_line(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            code, line = frame.f_code, frame.f_lineno
            if (found := prefixes.get((code, line))) is None:
                # Drawn from the place, so that another line elsewhere changes nothing here.
                prefix = f"{key}/{code.co_qualname}/{line - code.co_firstlineno}/"
                found = prefixes[code, line] = prefix, crc32(prefix.encode())
            prefix, checksum = found
            counts[prefix] += 1
            if crc32(b"%d" % counts[prefix], checksum) < limit:
                on_line(f"{prefix}{counts[prefix]}")
        return trace_line

    def trace_call(frame: FrameType, event: str, arg: object) -> Any:
        return trace_line if frame.f_code.co_filename in SHARED else None

    return trace_call


async def hop(random: Random) -> None:
    """Let others run for some turns of the loop, or a short time."""
    if delay := random.choice(DELAYS):
        await pass_time(delay)
        return
    for _ in range(random.choice((0, 1, 3))):
        await anyio.lowlevel.checkpoint()


# ---- for the code that runs in threads -----------------------------------------------------------------------------


def _present() -> _Thread:
    thread: _Thread | None = getattr(_local, "thread", None)
    if thread is None:
        raise AssertionError("the event loop would wait for a thread")
    return thread


def present_threads() -> Threads:
    """Return those of the world of the present thread."""
    return _present().threads


def ask(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Await an async function in the event loop, while this thread waits; return its result or raise its error."""
    return _present().ask(partial(function, *args))


def call(function: Callable[..., T], *args: Any) -> T:
    """Call a function in the thread of the event loop, while nothing else runs."""
    if getattr(_local, "thread", None) is None:
        return function(*args)

    async def work() -> T:
        return function(*args)

    return _present().ask(work)


def call_at_once(function: Callable[..., T], *args: Any) -> T:
    """As ``call``, also in the middle of a callback of the loop: for what the kernel does."""
    if getattr(_local, "thread", None) is None:
        return function(*args)
    return _present().call_at_once(partial(function, *args))


def run_soon(function: Callable[..., T], *args: Any, token: object = None) -> T:
    """As ``anyio.from_thread.run_sync``; call it at once in the thread of the event loop."""
    if getattr(_local, "thread", None) is None:
        return function(*args)

    thread = _present()

    async def work() -> T:
        await thread.hop()
        return function(*args)

    return thread.ask(work)


class Waiters:
    """The threads that wait for one thing."""

    def __init__(self) -> None:
        self._events: list[anyio.Event] = []

    def wait(self, timeout: float | None) -> bool:
        """Wait for ``wake``; return False after ``timeout`` seconds."""
        return ask(self._wait, call_at_once(self._add), timeout, _present().hop)

    def _add(self) -> anyio.Event:
        event = anyio.Event()
        self._events.append(event)
        return event

    async def _wait(self, event: anyio.Event, timeout: float | None, hop: Callable[[], Awaitable[None]]) -> bool:
        try:
            with anyio.move_on_after(timeout):
                await event.wait()
        finally:
            self._events.remove(event)
        is_woken = event.is_set()
        await hop()  # what it waits for may also come after its timeout, and before it runs
        return is_woken

    def wake(self) -> None:
        """Wake all of them."""
        if self._events:
            call_at_once(self._set)

    def _set(self) -> None:
        for event in self._events:
            event.set()


class Lock:
    """As ``threading.Lock``."""

    def __init__(self) -> None:
        self._is_locked = False
        self._waiters = Waiters()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._is_locked:
            if not blocking or not self._waiters.wait(None if timeout < 0 else timeout):
                return False
        self._is_locked = True
        return True

    def release(self) -> None:
        self._is_locked = False
        self._waiters.wake()

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class _Condition:
    """The condition of a future, whose own code is never interrupted."""

    def __init__(self) -> None:
        waiters = Waiters()
        self.wait = waiters.wait
        self.notify_all = waiters.wake

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *exc_info: object) -> None:
        """Do nothing."""


class BatonFuture(Future[T]):
    """As its base."""

    def __init__(self) -> None:
        super().__init__()
        self._condition: Any = _Condition()


class Thread:
    """As ``threading.Thread``; ``ident`` is that of the event loop, since nsqkit starts no others."""

    def __init__(self, *, target: Callable[..., object], args: Any = (), name: str, daemon: bool) -> None:
        self.ident: int | None = None
        self._function = partial(target, *args)
        self._name = name
        self._has_ended = False
        self._waiters = Waiters()

    def start(self) -> None:
        call(present_threads().tasks.start_soon, self._run, present_threads())

    async def _run(self, threads: Threads) -> None:
        self.ident = threading.get_ident()
        await threads.run(self._function, self._name)
        self._has_ended = True
        self._waiters.wake()

    def is_alive(self) -> bool:
        return not self._has_ended

    def join(self) -> None:
        while not self._has_ended:
            self._waiters.wait(None)
