"""The rows of a query's batches, counted on the driver from the seals of their logs."""

from __future__ import annotations

import attrs

from nsqkit.spark.slots.records import RowCounts
from nsqkit.spark.slots.wal import Wal


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
    last: RowCounts | None = None

    def advance(self, wal: Wal, next_batch: int) -> None:
        """Count the batches before ``next_batch``. The last one of an earlier run does not count for this run."""
        if self.next_batch is None and next_batch:
            self.last = count_batch(wal, next_batch - 1)
        for batch in range(next_batch if self.next_batch is None else self.next_batch, next_batch):
            self.last = count_batch(wal, batch)
            self.run_count += self.last.row_count
        self.next_batch = next_batch


def count_batch(wal: Wal, batch: int) -> RowCounts:
    """Return the figures of a batch; zeros if it has no logs."""
    return sum((seal.counts for seal in wal.seals(batch)), RowCounts())
