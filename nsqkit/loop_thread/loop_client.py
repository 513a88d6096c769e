"""One client in the event-loop thread, and the calls of other threads to it.

The calls of many threads at a time share one wake-up of the event loop. No call waits forever: those that wait at the
end get ``Closed``, and so do later ones, and those from another process. If an error ends the event-loop thread, its
clients end with it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

import anyio

from nsqkit.errors import Closed
from nsqkit.loop_thread.carried_exit import CarriedExit
from nsqkit.loop_thread.one_shot import OneShot
from nsqkit.loop_thread.provider import portal_provider
from nsqkit.loop_thread.waker import Waker

if TYPE_CHECKING:
    from concurrent.futures import Future


class Lease(Protocol):
    """The use of a client by a thread of its user, for a while."""

    def end(self) -> bool:
        """End it if no thread uses it now, and return True; otherwise wake the loop client when it can be ended."""


T = TypeVar("T")
C = TypeVar("C", bound=AbstractAsyncContextManager[Any])
L = TypeVar("L", bound=Lease)

SIGNAL_WAIT_MAX: Final = 1.0
"""Seconds that a wait lasts at a time. Python calls signal handlers between instructions, so one for a signal that came
just before a wait begins is called when that wait is over."""

Refuse: TypeAlias = Callable[[Exception], object]


class LoopClient(Generic[C]):
    """Runs one client in the event-loop thread, from its creation to ``end``; methods for threads begin with ``check``.

    Args:
        make: makes the client, in the event loop; it is entered there at once.
        name: the client's name in errors.
        interrupt: called in the event loop with the client if ``end`` is interrupted, so that leaving takes no time.

    Attributes:
        client: the client; use it in the event loop only.
    """

    def __init__(self, make: Callable[[], C], name: str, interrupt: Callable[[C], object] | None = None) -> None:
        self._pid = os.getpid()
        self._name = name
        self._is_open = True
        self._is_ending = False
        self._is_lost = False  # the event loop has ended before the client was left
        self._interrupt = interrupt
        self._queue: deque[tuple[Callable[[], object], Refuse | None]] = deque()
        self._wake_is_due = False
        self._lease: Lease | None = None
        self._lease_ended: anyio.Event
        self._task_count = 0
        with ExitStack() as stack:
            provider = portal_provider()
            self._portal = stack.enter_context(provider)
            assert provider.thread is not None
            self._thread_id = provider.thread.ident
            provider.at_end.append(self._on_loop_end)
            stack.callback(provider.at_end.remove, self._on_loop_end)
            self._loop = self._portal.call(asyncio.get_running_loop)
            self._waker = self._portal.call(Waker, self._loop, self._work_off)
            stack.callback(self._portal.call, self._waker.close)
            self.client = self._portal.call(make)
            stack.callback(setattr, self, "_is_open", False)
            stack.push(self._leave_quickly)
            stack.enter_context(self._portal.wrap_async_context_manager(self.client))
            # An interrupt may come before the client is left and while it is being left.
            stack.push(self._leave_quickly)
            stack.callback(self._portal.call, self._wait_lease_ended)
            self._stack = stack.pop_all()

    @property
    def is_here(self) -> bool:
        """True in the process that created it."""
        return self._pid == os.getpid()

    def check(self) -> None:
        """Raise an error where it cannot be used.

        Raises:
            Closed: after its end, or in another process than the one that created it.
            RuntimeError: in the event-loop thread, which would wait for itself.
        """
        if os.getpid() != self._pid:
            raise Closed(f"the {self._name} was opened in another process; open it in this one, too")
        if not self._is_open:
            raise Closed(f"the {self._name} is closed")
        if threading.get_ident() == self._thread_id:
            raise RuntimeError(f"the {self._name} was used in the event-loop thread, which would wait for itself")

    # ---- functions -----------------------------------------------------------------------------------------------

    def put(self, function: Callable[[], object], refuse: Refuse | None = None) -> None:
        """Call a function in the event loop soon, in the order of the calls of this method.

        The function must not raise. If the end comes first, ``refuse`` is called instead, with an error.
        """
        self.check()
        self._queue.append((function, refuse))
        # All calls before the loop works off the queue share a wake-up. The order matters: the loop clears the flag
        # before it reads the queue, so functions in the queue when the flag is set are found.
        if not self._wake_is_due:
            try:
                self._wake_is_due = True
                self._waker.wake()
            except RuntimeError:  # the loop has ended
                raise Closed(f"the {self._name} is closed") from None
            except BaseException:  # Ctrl-C, perhaps before the wake-up, on which other threads rely by now
                self._wake_is_due = False
                self._waker.wake()
                raise
        if not self._is_open:  # it was closed meanwhile, perhaps after it read the queue for the last time
            self._refuse_all()

    def ask(self, function: Callable[[], T]) -> T:
        """Call a function in the event loop, and return its result or raise what it raises; it is not async."""
        one_shot: OneShot[T] = OneShot()

        def call() -> None:
            try:
                result = function()
            except BaseException as error:
                one_shot.resolve(error if isinstance(error, Exception) else CarriedExit(error))
            else:
                one_shot.resolve(None, result)

        self.put(call, one_shot.resolve)
        try:
            return one_shot.get()
        except CarriedExit as carried:
            raise carried.error from None

    def call_later(self, delay: float, function: Callable[[], object]) -> None:
        """Call a function after ``delay`` seconds, if the event loop runs then; call this in the event loop."""
        self._loop.call_later(delay, function)

    def _work_off(self) -> None:
        self._wake_is_due = False
        if not self.end_lease():
            return  # this is called again when the lease can be ended
        queue = self._queue
        for _ in range(len(queue)):
            try:
                function, _ = queue.popleft()
            except IndexError:  # at the end, _refuse_all in other threads empties it, too
                return
            function()

    def _refuse_all(self) -> None:
        while True:
            try:
                _, refuse = self._queue.popleft()
            except IndexError:
                return
            if refuse is not None:
                refuse(Closed(f"the {self._name} is closed"))

    # ---- leases ----------------------------------------------------------------------------------------------------

    def lease(self, make: Callable[[], L | None]) -> L | None:
        """Return what ``make`` returns in the event loop; None if something runs or waits there.

        Until the lease is ended, no other call reaches the client: a call that is put or started ends the lease first.
        """
        return self.ask(partial(self._start_lease, make))

    def _start_lease(self, make: Callable[[], L | None]) -> L | None:
        lease = None if self._task_count or self._queue else make()
        if lease is not None:
            self._lease, self._lease_ended = lease, anyio.Event()
        return lease

    def wake(self) -> None:
        """Go on in the event loop with what waits for the end of the lease; any thread may call this."""
        self._waker.wake()

    def end_lease(self) -> bool:
        """End the lease if no thread uses it; return True if there is none now. Call this in the event loop."""
        if self._lease is not None and self._lease.end():
            self._lease = None
            self._lease_ended.set()
        return self._lease is None

    async def _wait_lease_ended(self) -> None:
        while not self.end_lease():
            await self._lease_ended.wait()

    # ---- async functions -----------------------------------------------------------------------------------------

    def start(self, function: Callable[[], Awaitable[T]]) -> Future[T]:
        """Start an async function in a task of the event loop, and return its future, which can cancel it."""
        self.check()
        try:
            return self._portal.start_task_soon(partial(self._run, function))
        except RuntimeError:  # the loop has ended
            raise Closed(f"the {self._name} is closed") from None

    async def _run(self, function: Callable[[], Awaitable[T]]) -> T:
        await self._wait_lease_ended()
        self._task_count += 1
        try:
            return await function()
        finally:
            self._task_count -= 1

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an async function in the event loop and return its result; an interrupt of the caller cancels it.

        What it raises is raised here, ``SystemExit`` and the like, too.
        """
        is_left = False
        scope: anyio.CancelScope | None = None

        async def work() -> T:
            nonlocal scope
            with anyio.CancelScope() as scope:
                if not is_left:
                    try:
                        return await function()
                    except (Exception, anyio.get_cancelled_exc_class()):
                        raise
                    except BaseException as error:
                        raise CarriedExit(error) from None
            raise Closed("its caller was interrupted")

        def leave() -> None:
            nonlocal is_left
            is_left = True
            if scope is not None:
                scope.cancel()

        try:
            return self._wait(self.start(work))
        except CarriedExit as carried:
            raise carried.error from None
        except CancelledError:  # the event loop ends
            raise Closed(f"the {self._name} is closed") from None
        except BaseException:  # perhaps before there was a future to cancel
            with suppress(Closed):
                self.put(leave)
            raise

    def _wait(self, future: Future[T]) -> T:
        while not future.done():
            if self._is_lost:
                raise Closed(f"the {self._name} is closed")
            with suppress(TimeoutError):
                return future.result(SIGNAL_WAIT_MAX)
        return future.result()

    # ---- the end -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Leave the client, refuse the calls that still wait, and leave the thread; do nothing in another process.

        The client can be used until it has been left.
        """
        if self._is_ending or not self.is_here:
            return
        self._is_ending = True
        try:
            self._stack.close()
        except BaseException as error:
            if self._is_lost and isinstance(error, RuntimeError):
                return  # there is no event loop in which to leave it
            # One that comes between two callbacks of the stack keeps it from calling the others.
            self._leave_quickly(type(error))
            self._stack.close()
            raise
        finally:
            self._is_open = False
            self._refuse_all()

    def _leave_quickly(self, exc_type: type[BaseException] | None, *_: object) -> None:
        """Let the client be left without a wait, if leaving it is interrupted."""
        if exc_type is not None and self._interrupt is not None:
            with suppress(RuntimeError):  # the event loop has ended
                self._portal.call(self._interrupt, self.client)

    def _on_loop_end(self) -> None:
        """Refuse all calls, those that wait, too, since the event loop has ended."""
        self._is_lost = True
        self._is_open = False
        self._refuse_all()
