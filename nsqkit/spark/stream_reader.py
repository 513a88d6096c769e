"""The driver's side of a stream: offsets, and which tasks read a batch.

        latestOffset(start) ─▶ depth? ─▶ n + 1 ─▶ checkpoint ─▶ partitions(n, n + 1): the stored plan ─▶ tasks

An offset has the name of a WAL, which so belongs to the checkpoint; a query without a checkpoint creates one. Spark
repeats each of these calls, and repeats a batch after a restart, so a batch's tasks come from its stored plan.

``commit`` does nothing, because Spark does not call it for the last batch of a run, and ``stop`` is not called at all.
Messages are finished when their rows are durable, so neither matters. ``WalStream`` removes old batches when the next
one begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs

from nsqkit.clock import NS_PER_S
from nsqkit.spark.admission import (
    AvailableNow,
    Backlog,
    Cluster,
    NowNs,
    Pause,
    Run,
    Sleep,
    begin_available_now,
    decide_continuous,
)
from nsqkit.spark.batch_plan import BatchLimits, batch_limits, plan_batch, read_plan, store_plan
from nsqkit.spark.batch_reader import WAIT, wal_info, wal_tasks
from nsqkit.spark.read_task import ReadTask, ReceiveTask
from nsqkit.spark.run_counts import RunCounts
from nsqkit.spark.slots.fsspec_store import open_slot_store
from nsqkit.spark.slots.maintenance import create_wal, open_wal, remove_batches
from nsqkit.spark.slots.wal import Wal
from nsqkit.spark.stream_offset import Offset, mode_offset, read_mode_offset, read_wal_offset, wal_offset

if TYPE_CHECKING:
    from nsqkit.spark.source_options import SourceOptions

logger = logging.getLogger("nsqkit.spark")


class Pacer:
    """Performs the decisions of ``nsqkit.spark.admission`` for one query.

    Attributes:
        backlog: the messages at the last decision; None if they were not known.
    """

    def __init__(
        self,
        options: SourceOptions,
        find_backlog: Callable[[], Backlog | None],
        now_ns: NowNs = time.time_ns,
        sleep: Sleep = time.sleep,
    ) -> None:
        self.backlog: Backlog | None = None
        self._options = options
        self._find_backlog = find_backlog
        self._now_ns = now_ns
        self._sleep = sleep
        self._run: AvailableNow | None = None

    def begin_available_now(self, row_count: int | None = 0) -> None:
        """Begin a run that ends when it has read the messages that are there now; ``row_count`` is None if unknown."""
        timeout_ms = self._options.available_now_timeout_ms
        backlog = self._look()
        self._run = begin_available_now(
            self._now_ns(),
            round(self._options.spec.msg_timeout * NS_PER_S),
            None if timeout_ms is None else timeout_ms * 1_000_000,
            wait_in_flight=self._options.spec.wait_in_flight,
        ).with_target(backlog, _count(row_count, backlog))

    def next_limits(self, row_count: int | None, last_row_count: int | None, *, read_all: bool) -> BatchLimits | None:
        """Return the limits of the next batch; None if there is none now.

        Args:
            row_count: rows of the run so far; None if they are not known, as in ``begin_available_now``.
            last_row_count: rows of its last batch; None before the first.
            read_all: whether the trigger asks for one batch without limits.
        """
        while (decision := self._decide(row_count, last_row_count)) is Pause.WAIT:
            self._sleep(WAIT)
        if not isinstance(decision, Run):
            return None
        limits = batch_limits(self._options.spec)
        if read_all:
            limits = attrs.evolve(limits, records_max=None, bytes_max=None)
        known = [count for count in (limits.records_max, decision.records_max) if count is not None]
        return attrs.evolve(limits, records_max=min(known, default=None))

    def _decide(self, row_count: int | None, last_row_count: int | None) -> Run | Pause:
        backlog = self._look()
        if self._run is None:
            return decide_continuous(backlog)
        count = _count(row_count, backlog)
        now_ns = self._now_ns()
        self._run = self._run.with_target(backlog, count).with_progress(backlog, count, now_ns)
        if backlog is not None and self._run.is_stalled(backlog, now_ns):
            logger.warning("a run ends with %d messages that wait: their nsqds deliver none of them", backlog.depth)
        return self._run.decide(backlog, count, last_row_count, now_ns)

    def _look(self) -> Backlog | None:
        self.backlog = self._find_backlog() if self._options.depth_check == "http" else None
        return self.backlog


class WalStream:
    """A stream with ``ackMode=wal``, in the process of one run of a query.

    Args:
        options: of the stream.
        cluster: its nsqds.
        now_ns: the clock, ns since the Unix epoch.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self, options: SourceOptions, cluster: Cluster, now_ns: NowNs = time.time_ns, sleep: Sleep = time.sleep
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._now_ns = now_ns
        self._pacer = Pacer(options, cluster.backlog, now_ns, sleep)
        self._new_id = uuid4().hex
        self._wal: Wal | None = None
        self._limits = batch_limits(options.spec)
        self._counts = RunCounts()

    def initial_offset(self) -> Offset:
        """Return the offset of a query without a checkpoint; the same each time."""
        return wal_offset(self._new_id, 0)

    def begin_available_now(self) -> None:
        """Begin a run that ends when it has read the messages that are there now."""
        self._pacer.begin_available_now()

    def latest_offset(self, start: Offset, *, read_all: bool) -> Offset:
        """Return the end of the next batch; ``start`` if there is none now.

        Args:
            start: the end of the last batch, which a checkpoint has.
            read_all: whether the trigger asks for one batch without limits.

        Raises:
            OptionError: the checkpoint and the WAL do not belong together, or the location has rows that no checkpoint
                has.
        """
        wal_id, batch = read_wal_offset(start)
        wal = self._open(wal_id, batch)
        if self._counts.next_batch != batch:
            self._begin_batch(wal, batch)
        # The last batch of an earlier run does not show whether messages wait now.
        last = self._counts.last if batch > self._counts.first_new else None
        limits = self._pacer.next_limits(
            self._counts.run_count, None if last is None else last.row_count, read_all=read_all
        )
        # Adopted rows, and those of the batches behind an older checkpoint, are in the WAL, and in no nsqd.
        is_stored = (batch == 0 and wal.adopted) or batch < self._counts.first_new
        if limits is None and not is_stored:
            return start
        self._limits = limits or batch_limits(self._options.spec)
        return wal_offset(wal_id, batch + 1)

    def tasks(self, start: Offset, end: Offset) -> list[ReadTask]:
        """Return the tasks of the batches between two offsets: those of the stored plans, if there are any.

        Raises:
            OptionError: the checkpoint and the WAL do not belong together.
        """
        wal_id, stop = read_wal_offset(end)
        start_id, first = read_wal_offset(start)
        if start_id != wal_id:
            # After a failure in its first batch, a checkpoint has no start, and Spark passes a new initial offset.
            first = 0
        wal = self._open(wal_id, first)
        tasks: list[ReadTask] = []
        for batch in range(first, stop):
            plan = read_plan(wal, batch) or store_plan(
                wal, plan_batch(batch, self._cluster.nodes(), self._limits, self._now_ns())
            )
            tasks += wal_tasks(self._options.wal_location, wal, plan)
        return tasks

    def report(self) -> Offset | None:
        """Return the figures for a query's progress; None before the first batch is decided."""
        if self._wal is None or self._counts.next_batch is None:
            return None
        found = {**wal_offset(self._wal.wal_id, self._counts.next_batch), **backlog_report(self._pacer.backlog)}
        if (last := self._counts.last) is not None:
            found |= {"rows": last.row_count, "finFailed": last.failed_count, "ambiguousSlots": last.ambiguous_count}
        return found

    def stop(self) -> None:
        """Do nothing: messages are finished by the tasks that received them."""

    def _begin_batch(self, wal: Wal, batch: int) -> None:
        """Count the last batch, and remove old ones. An idle query comes here once."""
        horizon_ns = self._options.dedup_horizon_ms * 1_000_000
        remove_batches(wal, batch, self._options.wal_retain_batches, horizon_ns, self._now_ns())
        self._counts.advance(wal, batch)

    def _open(self, wal_id: str, next_batch: int) -> Wal:
        if self._wal is None or self._wal.wal_id != wal_id:
            info, store = wal_info(self._options.spec), open_slot_store(self._options.wal_location)
            self._wal = (
                create_wal(store, wal_id, info, self._options.on_orphaned_wal)
                if wal_id == self._new_id
                else open_wal(store, wal_id, next_batch, info)
            )
        return self._wal


class ReceiveStream:
    """A stream with ``ackMode=receive``: a message is finished when it arrives, so a repeated batch has other rows."""

    def __init__(
        self, options: SourceOptions, cluster: Cluster, now_ns: NowNs = time.time_ns, sleep: Sleep = time.sleep
    ) -> None:
        self._cluster = cluster
        self._now_ns = now_ns
        self._pacer = Pacer(options, cluster.backlog, now_ns, sleep)
        self._limits = batch_limits(options.spec)
        self._next_batch: int | None = None

    def initial_offset(self) -> Offset:
        """Return the offset of a query without a checkpoint."""
        return mode_offset("receive", 0)

    def begin_available_now(self) -> None:
        """Begin a run that ends when the messages that are there now are finished."""
        self._pacer.begin_available_now(None)

    def latest_offset(self, start: Offset, *, read_all: bool) -> Offset:
        """Return the end of the next batch; ``start`` if there is none now."""
        batch = read_mode_offset("receive", start)
        # Without depths, a run with availableNow has one batch.
        limits = self._pacer.next_limits(None, None if self._next_batch is None else 0, read_all=read_all)
        self._next_batch = batch
        if limits is None:
            return start
        self._limits = limits
        return mode_offset("receive", batch + 1)

    def tasks(self, start: Offset, end: Offset) -> list[ReadTask]:
        """Return the tasks of one batch."""
        first, stop = read_mode_offset("receive", start), read_mode_offset("receive", end)
        if first == stop:
            return []
        plan = plan_batch(first, self._cluster.nodes(), self._limits, self._now_ns())
        return [ReceiveTask(first, share) for share in plan.partitions]

    def report(self) -> Offset | None:
        """Return the figures for a query's progress; None before the first batch is decided."""
        if self._next_batch is None:
            return None
        return {**mode_offset("receive", self._next_batch), **backlog_report(self._pacer.backlog)}

    def stop(self) -> None:
        """Do nothing: there is nothing to finish."""


def _count(row_count: int | None, backlog: Backlog | None) -> int:
    """Return the rows; if they are not known, the messages that were finished, which grow in the same way."""
    if row_count is None:
        return 0 if backlog is None else backlog.finished_count
    return row_count


def backlog_report(backlog: Backlog | None) -> Offset:
    """Return the messages of the channel, for a query's progress."""
    if backlog is None:
        return {}
    return {"depth": backlog.depth, "inFlight": backlog.in_flight, "deferred": backlog.deferred}
