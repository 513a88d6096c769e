"""Mutants of the slot log of a Spark partition."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

SLOT_LOG: Final = "spark/slots/slot_log.py"

MUTANTS: Final = (
    Mutant(
        "Spark: a chunk is finished before it is stored",
        "rows are lost when the executor dies in between",
        SLOT_LOG,
        "        return [PutSlot(self._next_number, self._chunk, self._outcome)]",
        "        return [FinishDuplicates(self._chunk), PutSlot(self._next_number, self._chunk, self._outcome)]",
        breaks=(31,),
    ),
    Mutant(
        "Spark: messages are not looked up",
        "rows come twice after a task was tried again",
        SLOT_LOG,
        "        if keys := tuple(key for key in self._chunk if key in self._redelivered):",
        "        if keys := ():",
        4_000,
        breaks=(32,),
    ),
    Mutant(
        "Spark: a put that was lost counts as stored",
        "a stopped owner finishes messages whose rows nothing reads",
        SLOT_LOG,
        "        if not stored:\n            chunk,",
        "        if False:\n            chunk,",
        4_000,
        breaks=(31,),
    ),
    Mutant(
        "Spark: slots without an outcome are not replayed",
        "rows whose messages are finished are lost when an executor dies",
        SLOT_LOG,
        "    last = FinOutcome(ambiguous=bool(data[-1].keys))",
        "    last = FinOutcome(frozenset(data[-1].keys))",
        4_000,
        breaks=(33,),
    ),
    Mutant(
        "Spark: an unknown FIN counts as refused",
        "rows whose messages are finished are lost with a connection",
        "consumer/confirmation.py",
        "                unknown += messages",
        "                failed += messages",
        4_000,
        breaks=(32,),
    ),
    Mutant(
        "Spark: a message whose FIN failed counts as finished",
        "its next delivery is finished without a row, and the row is lost",
        SLOT_LOG,
        """        if outcome == FinOutcome():
            self._finished = self._chunk
            return self._receive()
        self._finished = self._chunk = ()
""",
        """        self._finished = self._chunk
        if outcome == FinOutcome():
            return self._receive()
        self._chunk = ()
""",
        4_000,
        breaks=(32,),
    ),
    Mutant(
        "Spark: a slot counts as stored though its batch was removed",
        "an attempt that was stopped for long finishes messages whose rows no batch has",
        "spark/slots/wal.py",
        """        if self.wal.store.get(self.wal.removed_key(self.batch)) is None:
            return True
        self.wal.store.delete(key)
        return False
""",
        "        return True\n",
        plan="attempt-that-sleeps-until-its-batch-is-removed",
        breaks=(32,),
    ),
    Mutant(
        "Spark: an attempt does not find that another one has begun its log",
        "a batch read with speculative tasks never ends after one of them was lost (found by a world)",
        SLOT_LOG,
        "            return actions + self._put_slot()\n",
        "            return actions + self._put_chunk()\n",
        plan="messages-of-another-attempt",
        breaks=(26,),
    ),
    Mutant(
        "Spark: rows whose FIN has no known outcome are returned",
        "a message is processed twice where at most once was asked for",
        "spark/drainer.py",
        "(*confirmation.failed, *confirmation.unknown)}",
        "(*confirmation.failed,)}",
        plan="partition-with-a-lost-confirmation",
        breaks=(32,),
    ),
    Mutant(
        "Spark: messages that wait for the next chunk are not touched",
        "a handler that is slow gets all of its messages again and again",
        "spark/reception.py",
        "[*self._unfinished, *self.chunker.pending]",
        "[*self._unfinished]",
        plan="partition-with-a-slow-store",
        breaks=(13,),
    ),
    Mutant(
        "Spark: a partition counts as empty though it has lost an nsqd",
        "a bounded read ends, and the messages of an nsqd that has restarted are missing",
        "spark/reception.py",
        "elif reason is StopReason.EMPTY and self._spec.fail_on_node_loss and self._unconnected():",
        "elif False:",
        1_000,
        size="driver",
        breaks=(28,),
    ),
    Mutant(
        "Spark: messages that have timed out are passed on",
        "a message is processed by two partitions at once",
        "spark/chunker.py",
        "            chunk = [message for message in pending if not message.is_answered]\n",
        "            chunk = list(pending)\n",
        1_000,
        size="driver",
        breaks=(5,),
    ),
    Mutant(
        "Spark: a partition waits though no nsqd delivers more",
        "each chunk comes late by the time to linger if one of several nsqds has all messages",
        "spark/reception.py",
        "is_starved=any(c.is_starved for c in self.consumers.values())",
        "is_starved=False",
        size="driver",
        plan="partition-of-three-nsqds",
        breaks=(27,),
    ),
    Mutant(
        "Spark: RDY is not lowered to the messages that are wanted",
        "messages beyond a limit are delivered, and come back with one more attempt",
        "spark/reception.py",
        "            if wanted < limit:\n",
        "            if wanted > limit:\n",
        1_000,
        size="driver",
        breaks=(6,),
    ),
    Mutant(
        "Spark: a message that a handler requeues waits for its timeout",
        "it comes back after a minute instead of the delay that was asked for",
        "spark/drainer.py",
        "            reception.requeue([message], ack.delay)\n",
        "            pass\n",
        plan="partition-that-requeues",
        breaks=(13,),
    ),
    Mutant(
        "Spark: a chunk has more messages than the share of the partition",
        "a job takes more than its limit of messages",
        "spark/chunker.py",
        "return min(bounds.chunk_messages, bounds.max_messages - self.taken_count)",
        "return bounds.chunk_messages",
        size="driver",
        plan="chunk-of-one-message",
    ),
    Mutant(
        "Spark: a message that is in a slot is not finished at its next delivery",
        "it is delivered for ever, and the partition never ends",
        "spark/drainer.py",
        """                    if not message.is_answered:
                        message.finish()
""",
        "                    pass\n",
        size="driver",
        plan="slot-beside-a-kill",
        breaks=(26,),
    ),
    Mutant(
        "Spark: the seal of another attempt counts the FINs of a lost one as known",
        "its batch is removed early, and rows whose messages are delivered again come twice",
        SLOT_LOG,
        "    last = FinOutcome(ambiguous=bool(data[-1].keys))\n",
        "    last = FinOutcome()\n",
        2_000,
        breaks=(32,),
    ),
    Mutant(
        "Spark: the bytes of a chunk count for the next one",
        "chunks and their files become small, and a job slow",
        "spark/chunker.py",
        """            pending.clear()
            self._pending_bytes = 0
""",
        "            pending.clear()\n",
        size="driver",
        breaks=(27,),
    ),
    Mutant(
        "Spark: a batch has more partitions than rows",
        "it has more rows than its limit",
        "spark/batch_plan.py",
        "    wanted = min(wanted, limits.records_max or wanted)\n",
        "",
        breaks=(6,),
    ),
    Mutant(
        "Spark: batches with few messages in flight have the first nsqds alone",
        "with more nsqds than max_in_flight, those behind are never read",
        "spark/batch_plan.py",
        "    first = batch * planned_count if planned_count < connection_count else 0\n",
        "    first = 0\n",
        breaks=(27,),
    ),
    Mutant(
        "Spark: after a large message a connection gets no RDY",
        "a partition gets no more messages until its next attempt",
        "spark/in_flight_bytes.py",
        "RISE_MAX * self.limit, max(1, int(self.bytes_max / max(mean, 1.0))))\n",
        "RISE_MAX * self.limit, int(self.bytes_max / max(mean, 1.0)))\n",
        size="driver",
        plan="partition-with-a-large-message",
        breaks=(27,),
    ),
)
