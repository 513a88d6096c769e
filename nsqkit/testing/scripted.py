"""A scripted nsqd: a server on a real port that does, step by step, what a test has written.

    with ScriptedNsqd(expect("IDENTIFY"), reply(), expect("SUB"), reply(), expect("RDY"), message("one")) as nsqd:
        …  # a client that connects to nsqd.tcp_address

It is for tests of clients: of answers that no broker gives, at moments that no broker chooses.
"""

from __future__ import annotations

import logging
import threading
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from nsqkit.errors import OptionError
from nsqkit.loop_thread import portal_provider
from nsqkit.options.checks import take_seconds
from nsqkit.testing.blocking import wait
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.link.assertions import JournalAssertions, fail
from nsqkit.testing.link.items import Connection
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.options import HOST
from nsqkit.testing.script import Script, check_steps
from nsqkit.transport.accept import accept, remote_address
from nsqkit.transport.pump import Pump
from nsqkit.transport.tcp import listen, reset_on_close
from nsqkit.transport.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from datetime import timedelta
    from types import TracebackType

    from anyio.abc import ByteStream

    from nsqkit.testing.clock import Mode
    from nsqkit.testing.script import Step

logger = logging.getLogger("nsqkit.testing")

TIMEOUT: Final = 5.0
"""Real seconds for which a test waits for the last step of a client."""


class ScriptedNsqd(JournalAssertions):
    """A server that plays a script, in a thread, for ``with``; its end fails unless the script was played to its end.

    Args:
        steps: of ``nsqkit.testing.script``: those of every connection, of which one must come to the end; or a list of
            steps for each connection, in the order in which they begin, and all must come to their end. A connection
            beyond the last list is closed at once.
        clock: of the waits; a mode of a new one (``nsqkit.testing.clock.ControlledClock``).
        timeout: real seconds for which the end of the ``with`` waits for the last step.

    Attributes:
        tcp_address: ``host:port`` that clients connect to.
        journal: what the clients and the script have sent; the methods ``assert_…`` are about it.
        clock: the clock.

    Raises:
        OptionError: a step can never be reached, or is not one.
    """

    def __init__(
        self,
        *steps: Step | Sequence[Step],
        clock: Mode | ControlledClock = "running",
        timeout: float | timedelta = TIMEOUT,
    ) -> None:
        self.tcp_address = ""
        self.journal = Journal()
        self.clock = clock if isinstance(clock, ControlledClock) else ControlledClock(clock)
        self._timeout = take_seconds("timeout", timeout, least=0.0)
        self._scripts = _Scripts(steps)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(portal_provider())
            service = _Service(self._scripts, self.journal, self.clock)
            stack.enter_context(portal.wrap_async_context_manager(service))
            self.tcp_address = service.tcp_address
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        try:
            if exc_type is None:
                self._check()
        finally:
            self._stack.close()

    def assert_complete(self) -> Awaitable[None]:
        """Wait until the script was played to its end; await the result in an event loop.

        The end of the ``with`` does so, too, but a client in an event loop can send nothing while it waits.

        Raises:
            AssertionError: it was not, within the timeout: the text has the step, what came instead, and the journal.
        """
        __tracebackhide__ = True
        return wait(self._check)

    def _check(self) -> None:
        __tracebackhide__ = True
        sentence = self._scripts.wait(self._timeout)
        if sentence:
            fail(self.journal, sentence, list(self.journal))


class _Scripts:
    """The scripts of the connections, and their progress for other threads."""

    def __init__(self, steps: Sequence[Step | Sequence[Step]]) -> None:
        lists: list[Sequence[Any]] = [step for step in steps if isinstance(step, list | tuple)]
        if lists and len(lists) < len(steps):
            raise OptionError("some of the steps are lists; allowed are only steps, or only lists of steps")
        self._plans = [check_steps(each) for each in lists or [steps]]
        self._is_shared = not lists
        self._begun: list[Script] = []
        self._changed = threading.Condition()

    def begin(self, connection: Connection, journal: Journal, now_ns: int) -> Script | None:
        """Return the script of a new connection; None if there is none for it."""
        number = 0 if self._is_shared else len(self._begun)
        if number == len(self._plans):
            return None
        script = Script(self._plans[number], connection, journal, now_ns)
        self._begun.append(script)
        return script

    def notify(self) -> None:
        """Have a thread that waits look again."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float) -> str:
        """Wait for the end of the scripts; return a sentence if they failed, or did not come to their end."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._is_complete, seconds)
            return self._failure or ("" if self._is_complete else self._missing)

    @property
    def _is_complete(self) -> bool:
        completed = [script for script in self._begun if script.is_complete]
        return len(completed) >= len(self._plans)

    @property
    def _failure(self) -> str:
        return next((f"expected {script.failure}" for script in self._begun if script.failure), "")

    @property
    def _missing(self) -> str:
        unfinished = [script for script in self._begun if not script.is_complete]
        if unfinished:
            return f"expected {unfinished[0].progress}, but nothing more came"
        return f"expected {len(self._plans)} connections, but {len(self._begun)} came"


class _Service:
    """The server, in its event loop, for ``async with``."""

    def __init__(self, scripts: _Scripts, journal: Journal, clock: ControlledClock) -> None:
        self.tcp_address = ""
        self._scripts = scripts
        self._journal = journal
        self._clock = clock
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            listener = await stack.enter_async_context(await listen(f"{HOST}:0"))
            self.tcp_address = listener.address
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(accept, listener, self._serve, tasks, logger, self._clock)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _serve(self, stream: ByteStream) -> None:
        script = self._scripts.begin(Connection(remote_address(stream)), self._journal, self._clock.now_ns())
        if script is None:
            await anyio.aclose_forcefully(stream)
            return

        def after(now_ns: int) -> None:
            if script.is_reset:
                reset_on_close(stream)
            pump.wake()
            timer.check()
            self._scripts.notify()

        pump = Pump(script, stream, self._clock, after=after)
        timer = Timer(script, self._clock, after=after)
        after(self._clock.now_ns())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(timer.run)
            await pump.run()
            tasks.cancel_scope.cancel()
        self._scripts.notify()
