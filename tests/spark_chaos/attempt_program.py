"""One attempt at the log of a partition, without Spark: prints the number of its rows and their digest."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from nsqkit.spark import schema
from nsqkit.spark.batch_plan import named_nodes, plan_spec
from nsqkit.spark.drainer import drain_to_slots
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.slots.local_store import LocalStore
from nsqkit.spark.slots.wal import Wal

if __name__ == "__main__":
    spec = ConsumerSpec(**json.loads(sys.argv[2]))
    (share,) = plan_spec(spec, named_nodes(spec))
    log = Wal(LocalStore(Path(sys.argv[1])), "wal").partition(0, 0)
    slots, stats = drain_to_slots(spec, share, log)
    numbers, digest = schema.RowNumbers(0, 0), hashlib.sha256()
    for slot in slots:
        data = log.read_slot(slot.number)
        for batch in schema.record_batches(data.payload, data.keys, slot.excluded, numbers):
            digest.update(repr(batch.to_pylist()).encode())
    print(json.dumps({"rows": numbers.next_row, "digest": digest.hexdigest(), "requeued": stats.requeued_count}))
