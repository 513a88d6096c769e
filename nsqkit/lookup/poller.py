"""The tasks that ask nsqlookupds again and again, one for each.

The rule it guards: no nsqlookupd can hold up another, and none can harm whoever wants to know: each is asked in a task
of its own, at times of its own; a failure is a line in the log and an entry in ``lookupds``, and then it is asked
again. What the answers mean together is for ``MergedResponses`` to say, which is told of good ones only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
import attrs

from nsqkit.client.failure import advice
from nsqkit.clock import NS_PER_S, Clock, LoopClock
from nsqkit.errors import Closed, OptionError, RequestFailed
from nsqkit.lookup.merge import MergedResponses
from nsqkit.lookup.options import LookupOptions
from nsqkit.lookup.schedule import PollSchedule

if TYPE_CHECKING:
    from nsqkit.errors import NSQError
    from nsqkit.http.daemon import Daemon
    from nsqkit.lookup.lookupd_client import Ask

__all__ = ["LookupdPoller", "LookupdStatus"]

logger = logging.getLogger("nsqkit.lookup")

T = TypeVar("T")


@attrs.frozen
class LookupdStatus:
    """How one nsqlookupd does.

    Attributes:
        name: its URL without user, password and query.
        answered_ns: when it gave its last good answer, ns since the Unix epoch; None if it never has.
        entry_count: how much it listed then.
        failure_count: how many questions in a row have failed since.
        error: why the last of these failed; None if it has not.
    """

    name: str
    answered_ns: int | None = None
    entry_count: int = 0
    failure_count: int = 0
    error: Exception | None = None


@attrs.define(eq=False)
class _Lookupd:
    """One nsqlookupd that is asked; ``scope`` ends its task, ``sleep`` ends the wait for the next question.

    Both scopes are made by the task: clients are also made where no event loop runs.
    """

    daemon: Daemon
    status: LookupdStatus
    scope: anyio.CancelScope | None = None
    sleep: anyio.CancelScope | None = None
    schedule: PollSchedule | None = None


class LookupdPoller(Generic[T]):
    """Asks nsqlookupds for as long as ``run`` runs.

    Args:
        lookupd_http_addresses: where they are.
        ask: puts the question to one of them.
        on_listed: called in the event loop with all that is listed, after each good answer and each removal.
        on_failure: called in the event loop with each permanent error; None to go on.
        options: how they are asked.
        clock: the time; by default the real one.
        random: chance; by default seeded by the system.
        log: where to say what happens.

    Raises:
        OptionError: an address that cannot be one.
    """

    def __init__(
        self,
        lookupd_http_addresses: Sequence[str],
        *,
        ask: Ask[T],
        on_listed: Callable[[dict[str, T]], None],
        on_failure: Callable[[NSQError], None] | None = None,
        options: LookupOptions | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] = logger,
    ) -> None:
        self.options = options or LookupOptions()
        self._log = log
        self._ask = ask
        self._on_listed = on_listed
        self._on_failure = on_failure
        self._clock = clock
        self._random = random or Random()
        self._responses: MergedResponses[T] = MergedResponses()
        self._is_running = False
        self._added = anyio.Event()
        self._lookupds = {
            key: _Lookupd(daemon, LookupdStatus(daemon.name))
            for key, daemon in self.options.daemons(lookupd_http_addresses, clock).items()
        }

    @property
    def lookupds(self) -> list[LookupdStatus]:
        """How each nsqlookupd does."""
        return [lookupd.status for lookupd in self._lookupds.values()]

    def add_lookupd(self, address: str) -> None:
        """Ask this nsqlookupd, too, beginning now; one that is asked already is left alone.

        Raises:
            OptionError: the address cannot be one.
        """
        daemon = self.options.daemon(address, self._clock)
        if daemon.key in self._lookupds:
            return
        self._lookupds[daemon.key] = _Lookupd(daemon, LookupdStatus(daemon.name))
        self._added.set()

    def remove_lookupd(self, address: str) -> None:
        """Ask this nsqlookupd no more, and forget what only it has listed.

        Raises:
            OptionError: it is none of those that are asked.
        """
        daemon = self.options.daemon(address, self._clock)
        lookupd = self._lookupds.pop(daemon.key, None)
        if lookupd is None:
            asked = ", ".join(status.name for status in self.lookupds)
            raise OptionError(f"nsqlookupd {daemon} is none of those that are asked: {asked or 'none'}")
        if lookupd.scope is not None:
            lookupd.scope.cancel()
        self._responses.forget(daemon.key)
        self._on_listed(self._responses.merged())

    def wake(self) -> None:
        """Ask all of them soon, within about a second: somebody has lost a connection, and may find another."""
        if self._clock is None:
            return
        for lookupd in self._lookupds.values():
            if lookupd.schedule is not None:
                lookupd.schedule.wake(self._clock.now_ns())
                if lookupd.sleep is not None:
                    lookupd.sleep.cancel()

    async def run(self) -> None:
        """Ask until cancelled.

        Raises:
            Closed: it runs already.
        """
        if self._is_running:
            raise Closed("it runs already, and can run once at a time")
        self._clock = self._clock or LoopClock()
        asked: set[_Lookupd] = set()
        async with anyio.create_task_group() as tasks:
            self._is_running = True
            try:
                while True:
                    self._added = anyio.Event()
                    for lookupd in self._lookupds.values():
                        if lookupd not in asked:
                            asked.add(lookupd)
                            tasks.start_soon(self._keep_asking, lookupd)
                    asked.intersection_update(self._lookupds.values())
                    await self._added.wait()
            finally:
                self._is_running = False

    async def _keep_asking(self, lookupd: _Lookupd) -> None:
        clock = self._clock
        assert clock is not None
        schedule = lookupd.schedule = PollSchedule(
            interval_ns=round(self.options.lookupd_poll_interval * NS_PER_S),
            jitter=self.options.lookupd_poll_jitter,
            random=self._random,
            now_ns=clock.now_ns(),
        )
        with anyio.CancelScope() as lookupd.scope:
            while (
                self._lookupds.get(lookupd.daemon.key) is lookupd
            ):  # it may be removed before this task begins
                while schedule.next_poll_ns > clock.now_ns():
                    with anyio.CancelScope() as lookupd.sleep:
                        await clock.wait_until(schedule.next_poll_ns)
                await self._ask_once(lookupd, schedule, clock)

    async def _ask_once(self, lookupd: _Lookupd, schedule: PollSchedule, clock: Clock) -> None:
        schedule.begin()
        try:
            entries = await self._ask(lookupd.daemon)
        except Exception as error:
            schedule.failed(clock.now_ns())
            self._failed(lookupd, schedule, error)
        else:
            schedule.answered(clock.now_ns())
            lookupd.status = LookupdStatus(lookupd.daemon.name, clock.now_ns(), len(entries))
            if self._lookupds.get(lookupd.daemon.key) is lookupd:  # it may have been removed just now
                self._responses.record(lookupd.daemon.key, entries)
                self._on_listed(self._responses.merged())

    def _failed(self, lookupd: _Lookupd, schedule: PollSchedule, error: Exception) -> None:
        before = lookupd.status
        lookupd.status = attrs.evolve(before, failure_count=schedule.failure_count, error=error)
        fields = {"lookupd": lookupd.daemon.name, "failure_count": schedule.failure_count}
        if not (isinstance(error, RequestFailed) and error.permanent):
            # An unexpected error is a fault of nsqkit; it must not end the consumer either.
            self._log.warning(
                "nsqlookupd %s has failed %d times in a row: %s",
                lookupd.daemon,
                schedule.failure_count,
                error,
                exc_info=None if isinstance(error, RequestFailed) else error,
                extra=fields,
            )
            return
        level = logging.DEBUG if str(error) == str(before.error) else logging.ERROR
        self._log.log(level, "nsqlookupd %s: %s (%s)", lookupd.daemon, error, advice(error), extra=fields)
        if self._on_failure is not None:
            self._on_failure(error)
