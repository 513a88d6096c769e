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
)
