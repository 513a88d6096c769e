"""Polling of nsqlookupds, with a task and a schedule for each of them.

So a slow nsqlookupd does not delay the others. A failed request is logged, recorded in ``lookupds`` and repeated.
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
    from nsqkit.lookup.lookupd_client import Query

logger = logging.getLogger("nsqkit.lookup")

T = TypeVar("T")


@attrs.frozen
class LookupdStatus:
    """The results of polling one nsqlookupd.

    Attributes:
        name: its URL without user, password and query.
        answered_ns: the time of its last successful response, ns since the Unix epoch; None if there was none.
        entry_count: the number of entries in that response.
        failure_count: the number of failed requests since.
        error: the error of the last request; None if it succeeded.
    """

    name: str
    answered_ns: int | None = None
    entry_count: int = 0
    failure_count: int = 0
    error: Exception | None = None


@attrs.define(eq=False)
class _Lookupd:
    """One nsqlookupd; ``scope`` ends its task, ``sleep`` ends the wait for its next request.

    The task makes both scopes, since a client can be made where no event loop runs.
    """

    daemon: Daemon
    status: LookupdStatus
    scope: anyio.CancelScope | None = None
    sleep: anyio.CancelScope | None = None
    schedule: PollSchedule | None = None


class LookupdPoller(Generic[T]):
    """Polls nsqlookupds for as long as ``run`` runs; the base of ``Discovery``, which has most arguments.

    ``on_merged`` is called in the event loop with all entries, after each successful response and each removal.
    """

    def __init__(
        self,
        lookupd_http_addresses: Sequence[str],
        *,
        query: Query[T],
        on_merged: Callable[[dict[str, T]], None],
        on_failure: Callable[[NSQError], None] | None = None,
        options: LookupOptions | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] = logger,
    ) -> None:
        self.options = options or LookupOptions()
        self._log = log
        self._query = query
        self._on_merged = on_merged
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
        """The status of each nsqlookupd."""
        return [lookupd.status for lookupd in self._lookupds.values()]

    def add_lookupd(self, address: str) -> None:
        """Poll another nsqlookupd, beginning now; do nothing if it is polled already.

        Raises:
            OptionError: the address is invalid.
        """
        daemon = self.options.daemon(address, self._clock)
        if daemon.key in self._lookupds:
            return
        self._lookupds[daemon.key] = _Lookupd(daemon, LookupdStatus(daemon.name))
        self._added.set()

    def remove_lookupd(self, address: str) -> None:
        """Stop polling an nsqlookupd, and forget the entries that only it listed; OptionError if it is not polled."""
        daemon = self.options.daemon(address, self._clock)
        lookupd = self._lookupds.pop(daemon.key, None)
        if lookupd is None:
            asked = ", ".join(status.name for status in self.lookupds)
            raise OptionError(f"nsqlookupd {daemon} is none of those that are asked: {asked or 'none'}")
        if lookupd.scope is not None:
            lookupd.scope.cancel()
        self._responses.forget(daemon.key)
        self._on_merged(self._responses.merged())

    def wake(self) -> None:
        """Send the next requests within about a second, after the loss of a connection to an nsqd."""
        if self._clock is None:
            return
        for lookupd in self._lookupds.values():
            if lookupd.schedule is not None:
                lookupd.schedule.wake(self._clock.now_ns())
                if lookupd.sleep is not None:
                    lookupd.sleep.cancel()

    async def run(self) -> None:
        """Poll until cancelled; raise ``Closed`` if it runs already."""
        if self._is_running:
            raise Closed("it runs already, and can run once at a time")
        self._clock = self._clock or LoopClock()
        polled: set[_Lookupd] = set()
        async with anyio.create_task_group() as tasks:
            self._is_running = True
            try:
                while True:
                    self._added = anyio.Event()
                    for lookupd in self._lookupds.values():
                        if lookupd not in polled:
                            polled.add(lookupd)
                            tasks.start_soon(self._poll, lookupd)
                    polled.intersection_update(self._lookupds.values())
                    await self._added.wait()
            finally:
                self._is_running = False

    async def _poll(self, lookupd: _Lookupd) -> None:
        clock = self._clock
        assert clock is not None
        schedule = lookupd.schedule = PollSchedule(
            interval_ns=round(self.options.lookupd_poll_interval * NS_PER_S),
            jitter=self.options.lookupd_poll_jitter,
            random=self._random,
            now_ns=clock.now_ns(),
        )
        with anyio.CancelScope() as lookupd.scope:
            # It may have been removed before this task began.
            while self._lookupds.get(lookupd.daemon.key) is lookupd:
                while schedule.next_poll_ns > clock.now_ns():
                    with anyio.CancelScope() as lookupd.sleep:
                        await clock.wait_until(schedule.next_poll_ns)
                await self._poll_once(lookupd, schedule, clock)

    async def _poll_once(self, lookupd: _Lookupd, schedule: PollSchedule, clock: Clock) -> None:
        schedule.begin()
        try:
            entries = await self._query(lookupd.daemon)
        except Exception as error:
            schedule.failed(clock.now_ns())
            self._record_failure(lookupd, schedule, error)
        else:
            schedule.answered(clock.now_ns())
            lookupd.status = LookupdStatus(lookupd.daemon.name, clock.now_ns(), len(entries))
            if self._lookupds.get(lookupd.daemon.key) is lookupd:  # it may have been removed meanwhile
                self._responses.record(lookupd.daemon.key, entries)
                self._on_merged(self._responses.merged())

    def _record_failure(self, lookupd: _Lookupd, schedule: PollSchedule, error: Exception) -> None:
        before = lookupd.status
        lookupd.status = attrs.evolve(before, failure_count=schedule.failure_count, error=error)
        fields = {"lookupd": lookupd.daemon.name, "failure_count": schedule.failure_count}
        if not (isinstance(error, RequestFailed) and error.permanent):
            # Other errors are bugs of nsqkit, which must not end a consumer either.
            text = "nsqlookupd %s has failed %d times in a row: %s"
            shown = None if isinstance(error, RequestFailed) else error
            count = schedule.failure_count
            self._log.warning(text, lookupd.daemon, count, error, exc_info=shown, extra=fields)
            return
        level = logging.DEBUG if str(error) == str(before.error) else logging.ERROR
        self._log.log(level, "nsqlookupd %s: %s (%s)", lookupd.daemon, error, advice(error), extra=fields)
        if self._on_failure is not None:
            self._on_failure(error)
