"""The rows of a query's batches, counted on the driver from the seals of their logs."""

from __future__ import annotations

import attrs

from nsqkit.spark.slots.maintenance import planned_batches
from nsqkit.spark.slots.records import RowCounts
from nsqkit.spark.slots.wal import Wal


@attrs.define
class RunCounts:
    """The figures of one run of a query.

    Attributes:
        next_batch: the first batch that is not counted; None before the first call of ``advance``.
        first_new: the first batch that had no plan when the run began.
        run_count: rows of the batches that began in this run.
        last: the last batch; None if it is not known.
    """

    next_batch: int | None = None
    first_new: int = 0
    run_count: int = 0
    last: RowCounts | None = None

    def advance(self, wal: Wal, next_batch: int) -> None:
        """Count the batches before ``next_batch``. Those of earlier runs do not count for this run."""
        first = self.next_batch
        if first is None:
            first = max(next_batch - 1, 0)
            self.first_new = max([next_batch, *(batch + 1 for batch in planned_batches(wal))])
        for batch in range(first, next_batch):
            self.last = count_batch(wal, batch)
            if batch >= self.first_new:
                self.run_count += self.last.row_count
        self.next_batch = next_batch


def count_batch(wal: Wal, batch: int) -> RowCounts:
    """Return the figures of a batch; zeros if it has no logs."""
    return sum((seal.counts for seal in wal.seals(batch)), RowCounts())
