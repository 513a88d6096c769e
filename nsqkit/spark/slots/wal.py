"""The keys of one WAL in a store, and the actions of a slot log that read or write them.

        <walId>/plan/<n>.json · <walId>/<n>/<k>/00000i.slot · <walId>/<n>/<k>/00000i.fin · <walId>/removed/<n>

``n`` is the batch, ``k`` the partition and ``i`` the slot. The log is read by number, not from a list, so that a store
whose lists are late still gives each slot that precedes another. Removed slots fence no more, so ``removed/<n>``
precedes their removal, and an owner that was stopped until then looks for it before it finishes messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from nsqkit.errors import ProtocolError
from nsqkit.spark.slots.dedupe import DedupeIndex, Presence
from nsqkit.spark.slots.records import (
    DataSlot,
    FinRecord,
    MessageKey,
    decode_fin,
    decode_slot,
    encode_data,
    encode_fin,
    encode_seal,
)
from nsqkit.spark.slots.slot_log import LogEntry
from nsqkit.spark.slots.store import SlotStore


@attrs.define(eq=False)
class Wal:
    """One WAL: the logs of all partitions of all batches.

    Attributes:
        store: where it is.
        wal_id: its name, the first part of all its keys.
        adopted: older WALs whose rows are rows of this one.
        index: the messages of the slots that were looked at; it may live as long as the process.
    """

    store: SlotStore
    wal_id: str
    adopted: tuple[str, ...] = ()
    index: DedupeIndex = attrs.field(factory=DedupeIndex)

    def plan_key(self, batch: int) -> str:
        return f"{self.wal_id}/plan/{batch}.json"

    def batch_prefix(self, batch: int) -> str:
        return f"{self.wal_id}/{batch}/"

    def removed_key(self, batch: int) -> str:
        return f"{self.wal_id}/removed/{batch}"

    def partition(self, batch: int, partition: int) -> PartitionWal:
        """Return the log of one partition."""
        return PartitionWal(self, batch, f"{self.batch_prefix(batch)}{partition}/")

    def look_up(self, keys: Iterable[MessageKey]) -> dict[MessageKey, Presence]:
        """Return the presence of each message that is in a slot of this WAL, by the slots that exist now."""
        listed = {key for wal_id in (self.wal_id, *self.adopted) for key in self.store.list(f"{wal_id}/")}
        for slot_key in sorted(key for key in listed if key.endswith(".slot") and not self.index.has(key)):
            data = self.store.get(slot_key)
            slot = None if data is None else decode_slot(slot_key, data)
            if isinstance(slot, DataSlot):
                self.index.add_slot(slot_key, slot.keys)
        for slot_key in self.index.open_slots:
            if (fin := self.read_fin(slot_key)) is not None:
                self.index.decide(slot_key, fin)
        return self.index.look_up(keys)

    def read_fin(self, slot_key: str) -> FinRecord | None:
        """Return the FIN record of a slot; None if there is none."""
        key = fin_key(slot_key)
        data = self.store.get(key)
        return None if data is None else decode_fin(key, data)


@attrs.frozen
class PartitionWal:
    """The log of one partition of one batch; its methods perform the actions of the same names."""

    wal: Wal
    batch: int
    prefix: str

    def slot_key(self, number: int) -> str:
        return f"{self.prefix}{number:06}.slot"

    def read_log(self) -> list[LogEntry]:
        """Return the slots from number 0 on, up to the first that is absent; those with rows without their payload.

        All payloads together would be the whole partition in memory.

        Raises:
            ProtocolError: a slot or a FIN record is not readable.
        """
        entries: list[LogEntry] = []
        while (data := self.wal.store.get(key := self.slot_key(len(entries)))) is not None:
            slot = decode_slot(key, data)
            if isinstance(slot, DataSlot):
                slot = DataSlot(slot.keys, b"")
            entries.append(LogEntry(slot, self.wal.read_fin(key)))
        return entries

    def read_slot(self, number: int) -> DataSlot:
        """Return the rows of a slot to replay.

        Raises:
            ProtocolError: there are none.
        """
        key = self.slot_key(number)
        data = self.wal.store.get(key)
        slot = None if data is None else decode_slot(key, data)
        if not isinstance(slot, DataSlot):
            raise ProtocolError(f"{key} has no rows, although its log has a later slot: {slot!r}")
        return slot

    def put_slot(self, number: int, keys: Sequence[MessageKey], payload: bytes | memoryview) -> bool:
        """Store the rows of a chunk; return False if the slot exists, or did before the batch was removed."""
        key = self.slot_key(number)
        if not self.wal.store.put_if_absent(key, encode_data(keys, payload)):
            return False
        if self.wal.store.get(self.wal.removed_key(self.batch)) is None:
            return True
        self.wal.store.delete(key)
        return False

    def put_fin(self, number: int, record: FinRecord) -> bool:
        """Store the FIN record of a slot; return False if it exists."""
        return self.wal.store.put_if_absent(fin_key(self.slot_key(number)), encode_fin(record))

    def put_seal(self, number: int) -> bool:
        """Store the seal; return False if the slot exists."""
        return self.wal.store.put_if_absent(self.slot_key(number), encode_seal())


def fin_key(slot_key: str) -> str:
    """Return the key of a slot's FIN record."""
    return slot_key.removesuffix(".slot") + ".fin"
