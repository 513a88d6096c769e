"""The rows of a query's batches, counted on the driver from the FIN records of their slots."""

from __future__ import annotations

import attrs

from nsqkit.spark.batch_plan import read_plan
from nsqkit.spark.slots.wal import Wal


@attrs.frozen
class BatchCounts:
    """The figures of one batch.

    Attributes:
        row_count: its rows.
        failed_count: rows left out because their FIN failed: nsqd had given the messages to another consumer.
        ambiguous_count: slots whose FINs have no known outcome.
    """

    row_count: int = 0
    failed_count: int = 0
    ambiguous_count: int = 0


@attrs.define
class RunCounts:
    """The figures of one run of a query.

    Attributes:
        next_batch: the first batch that is not counted; None before the first call of ``advance``.
        run_count: rows of the batches that began in this run.
        last: the last batch; None if it is not known.
    """

    next_batch: int | None = None
    run_count: int = 0
    last: BatchCounts | None = None

    def advance(self, wal: Wal, next_batch: int) -> None:
        """Count the batches before ``next_batch``. The last one of an earlier run does not count for this run."""
        if self.next_batch is None and next_batch:
            self.last = count_batch(wal, next_batch - 1)
        for batch in range(next_batch if self.next_batch is None else self.next_batch, next_batch):
            self.last = count_batch(wal, batch)
            self.run_count += self.last.row_count
        self.next_batch = next_batch


def count_batch(wal: Wal, batch: int) -> BatchCounts:
    """Return the figures of a batch; zeros if it has no plan."""
    row_count = failed_count = ambiguous_count = 0
    plan = read_plan(wal, batch)
    for share in plan.partitions if plan else ():
        partition_wal = wal.partition(batch, share.index)
        number = 0
        while (fin := wal.read_fin(partition_wal.slot_key(number))) is not None:
            row_count += fin.row_count
            failed_count += len(fin.failed)
            ambiguous_count += fin.ambiguous
            number += 1
    return BatchCounts(row_count, failed_count, ambiguous_count)
