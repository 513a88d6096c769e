"""The removal of batch reads from ``walLocation``: nothing else removes their rows.

Spark makes no call when the rows of a ``load()`` are no longer needed: each action reads them again. So their age
decides, as for the files of a removed table version in a lake.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

from nsqkit.clock import NS_PER_S
from nsqkit.spark.batch_reader import FOLDER
from nsqkit.spark.slots.fsspec_store import open_slot_store
from nsqkit.spark.slots.maintenance import created_ns, open_wals


def remove_reads(wal_location: str | os.PathLike[str], older_than: timedelta) -> list[str]:
    """Remove the rows of batch reads, and return the names of the reads.

    The rows of a read that another one has adopted stay as long as the other one's.

    Args:
        wal_location: the ``walLocation`` of the reads.
        older_than: the time since a read has begun. It has to be longer than any job that uses such a DataFrame.

    Raises:
        OptionError: the location cannot be used.
        ProtocolError: the record of a read is not readable.
    """
    store = open_slot_store(f"{os.fspath(wal_location).rstrip('/')}/{FOLDER}")
    limit_ns = time.time_ns() - round(older_than.total_seconds() * NS_PER_S)
    wals = open_wals(store)
    ages = {wal.wal_id: created_ns(wal, 0) for wal in wals}
    # A read without a plan is one that begins just now.
    old = {wal_id for wal_id, begin_ns in ages.items() if begin_ns and begin_ns <= limit_ns}
    kept = {wal_id for wal in wals if wal.wal_id not in old for wal_id in wal.adopted}
    removed = sorted(old - kept)
    for wal_id in removed:
        store.delete(f"{wal_id}/")
    return removed
