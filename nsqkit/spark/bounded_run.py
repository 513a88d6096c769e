"""A run that ends: its figures, the messages that it leaves, and the wait for messages in flight.

        run ─▶ in flight elsewhere? ─▶ wait, at most one message timeout ─▶ depth left? ─▶ run once more ─▶ report

A partition without messages cannot see those that nsqd has delivered elsewhere, such as those of an executor that was
killed: nsqd delivers them again after their timeout. So a run may end early, with messages left. It says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from nsqkit.clock import NS_PER_S
from nsqkit.spark.chunker import StopReason
from nsqkit.spark.discovery import Backlog
from nsqkit.spark.drainer import PartitionStats
from nsqkit.spark.options import ConsumerSpec

logger = logging.getLogger("nsqkit.spark")

POLL: Final = 0.2
"""Seconds between two looks at the messages in flight."""

SCAN: Final = 1.0
"""Seconds in which nsqd finds that a message has timed out; by default it looks every 0.1 seconds."""


@attrs.frozen(kw_only=True)
class RunStats:
    """The figures of a run.

    Attributes:
        partitions: those of each partition, from the attempt that succeeded.
        left: the messages of the channel after the run; None if they are not known, as without
            ``lookupd_http_addresses`` and ``nsqd_http_addresses``.
    """

    partitions: tuple[PartitionStats, ...]
    left: Backlog | None

    @property
    def finished_count(self) -> int:
        """Messages that were finished."""
        return sum(stats.finished_count for stats in self.partitions)


def run_bounded(
    spec: ConsumerSpec,
    run: Callable[[ConsumerSpec], Sequence[PartitionStats]],
    find_backlog: Callable[[], Backlog | None],
    *,
    now_ns: Callable[[], int] = time.time_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> RunStats:
    """Run all partitions, wait for messages in flight if the spec says so, and log the messages that it leaves.

    Args:
        spec: the channel and the limits.
        run: runs the partitions within the limits of a spec.
        find_backlog: returns the messages of the channel; None if they cannot be known.
        now_ns: the clock, ns since the Unix epoch.
        sleep: waits for a number of seconds.
    """
    partitions = [*run(spec)]
    left = find_backlog()
    if spec.wait_in_flight and all(stats.stop_reason is StopReason.EMPTY for stats in partitions):
        until_ns = now_ns() + round((spec.msg_timeout + SCAN) * NS_PER_S)
        while left is not None and left.in_flight and now_ns() < until_ns:
            sleep(POLL)
            left = find_backlog()
        # Messages that came back between the end of the run and the first look were never seen in flight.
        if left is not None and left.depth:
            partitions += run(_rest(spec, partitions))
            left = find_backlog()
    stats = RunStats(partitions=tuple(partitions), left=left)
    _log(spec, stats)
    return stats


def _rest(spec: ConsumerSpec, partitions: Sequence[PartitionStats]) -> ConsumerSpec:
    """Return the spec with the rest of its limits; a partition that ended because it was empty has not reached them."""
    message_count = sum(stats.received_count for stats in partitions)
    byte_count = sum(stats.byte_count for stats in partitions)
    return attrs.evolve(
        spec,
        max_messages=None if spec.max_messages is None else max(1, spec.max_messages - message_count),
        max_bytes=None if spec.max_bytes is None else max(1, spec.max_bytes - byte_count),
    )


def _log(spec: ConsumerSpec, stats: RunStats) -> None:
    left = stats.left
    if left is not None:
        outcome = f"left depth {left.depth}, in flight {left.in_flight}, deferred {left.deferred}"
    elif spec.nsqd_tcp_addresses and not spec.nsqd_http_addresses:
        outcome = "the messages that it left are not known without nsqd_http_addresses"
    else:
        outcome = "the messages that it left are not known"
    is_empty = left is not None and not (left.depth or left.in_flight or left.deferred)
    logger.log(
        logging.INFO if is_empty else logging.WARNING,
        "[%s/%s] a run finished %d messages; %s",
        *(",".join(spec.topics), spec.channel, stats.finished_count, outcome),
    )
