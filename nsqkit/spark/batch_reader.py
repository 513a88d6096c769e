"""The read of a batch: its plan, pinned by a WAL.

        load() ─▶ plan, stored in a WAL ─▶ a task for each partition ─▶ Arrow batches

The WAL belongs to one ``load()``: its first action receives the messages, and each later action reads the same rows
from the logs. A location has the WALs of batch reads in its folder ``reads``, apart from those of streams.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from nsqkit.clock import NS_PER_S
from nsqkit.spark.batch_plan import BatchPlan, PartitionShare, plan_spec, read_plan, store_plan
from nsqkit.spark.read_task import ReadTask, ReceiveTask, WalLocation, WalTask, adopted_tasks
from nsqkit.spark.slots.fsspec_store import open_slot_store, show_location
from nsqkit.spark.slots.maintenance import WalInfo, create_wal, orphaned_wals
from nsqkit.spark.slots.wal import Wal
from nsqkit.spark.source_options import SourceOptions

if TYPE_CHECKING:
    from nsqkit.spark.admission import Cluster, NowNs, Sleep
    from nsqkit.spark.options import ConsumerSpec


logger = logging.getLogger("nsqkit.spark")

FOLDER: Final = "reads"

WAIT: Final = 0.1
"""Seconds between two looks at the messages in flight."""


class BatchRead:
    """A batch read on the driver.

    Args:
        options: of the read.
        wal_id: the name of the WAL of this ``load()``.
        cluster: its nsqds.
        now_ns: the clock, ns since the Unix epoch.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        options: SourceOptions,
        wal_id: str,
        cluster: Cluster,
        now_ns: NowNs = time.time_ns,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._options = options
        self._wal_id = wal_id
        self._cluster = cluster
        self._now_ns = now_ns
        self._sleep = sleep

    def tasks(self) -> list[ReadTask]:
        """Return the tasks; with ``ackMode=wal`` the same ones each time.

        Raises:
            OptionError: the location cannot be used, a topic has no nsqd, or ``max_in_flight`` is less than the number
                of nodes.
        """
        if self._options.ack_mode == "receive":
            return [ReceiveTask(0, share) for share in self._plan()]
        location = f"{self._options.wal_location.rstrip('/')}/{FOLDER}"
        store, info = open_slot_store(location), wal_info(self._options.spec)
        # It is planned first: a read that cannot be planned would leave a WAL, which nothing removes.
        stored = read_plan(Wal(store, self._wal_id), 0)
        planned = stored or BatchPlan(0, self._now_ns(), self._plan())
        wal = create_wal(store, self._wal_id, info, self._options.on_orphaned_wal)
        if self._options.on_orphaned_wal == "ignore":
            _report_earlier([wal_id for wal_id in orphaned_wals(store, info) if wal_id != self._wal_id], location)
        plan = stored or store_plan(wal, planned)
        return wal_tasks(location, wal, plan)

    def _plan(self) -> tuple[PartitionShare, ...]:
        self._report_left()
        return plan_spec(self._options.spec, self._cluster.nodes())

    def _report_left(self) -> None:
        """Wait for messages in flight if asked, and log those that the read leaves.

        Spark makes no call on the driver when a read has ended, so this is before it begins. Messages in flight are
        finished or come back within one message timeout.
        """
        if self._options.depth_check == "none":
            return
        spec = self._options.spec
        deadline_ns = self._now_ns() + round(spec.msg_timeout * NS_PER_S)
        backlog = self._cluster.backlog()
        while spec.wait_in_flight and backlog and backlog.in_flight and self._now_ns() < deadline_ns:
            self._sleep(WAIT)
            backlog = self._cluster.backlog()
        if backlog and (backlog.in_flight or backlog.deferred):
            logger.warning(
                "a read of topics %s and channel %s begins with %d messages, and leaves %d in flight to other "
                "consumers and %d deferred",
                ",".join(spec.topics),
                spec.channel,
                backlog.depth,
                backlog.in_flight,
                backlog.deferred,
            )


def _report_earlier(wal_ids: list[str], location: str) -> None:
    """Log the earlier reads: if a job failed, their rows are nowhere else, and nothing removes them."""
    if wal_ids:
        logger.warning(
            "%s has the rows of %d earlier reads, which this read leaves there: %s. Remove those whose job has stored "
            "its results; onOrphanedWal=adopt reads the others again",
            show_location(location),
            len(wal_ids),
            ", ".join(wal_ids),
        )


def wal_info(spec: ConsumerSpec) -> WalInfo:
    """Return the record of a WAL of this subscription."""
    return WalInfo(topics=",".join(sorted(spec.topics)), channel=spec.channel)


def wal_tasks(location: str, wal: Wal, plan: BatchPlan) -> list[ReadTask]:
    """Return the tasks of a planned batch; the first batch of a WAL has the rows of those that it adopted."""
    found = WalLocation(location=location, wal_id=wal.wal_id, adopted=wal.adopted)
    tasks: list[ReadTask] = [WalTask(found, plan.batch, share) for share in plan.partitions]
    if plan.batch == 0:
        tasks += adopted_tasks(found, wal, len(tasks))
    return tasks
