"""The keys of one WAL in a store, and the actions of a slot log that read or write them.

        <walId>/plan/<n>.json · <walId>/<n>/<k>/00000i.slot · <walId>/removed/<n>

``n`` is the batch, ``k`` the partition and ``i`` the slot. The log is read by number, not from a list, so that a store
whose lists are late still gives each slot that precedes another. Removed slots fence no more, so ``removed/<n>``
precedes their removal, and an owner that was stopped until then looks for it before it finishes messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import attrs

from nsqkit.errors import ProtocolError
from nsqkit.spark.slots.dedupe import DedupeIndex, Presence
from nsqkit.spark.slots.records import DataSlot, MessageKey, SealSlot, Slot, decode_slot, encode_slot
from nsqkit.spark.slots.store import SlotStore


@attrs.define(eq=False)
class Wal:
    """One WAL: the logs of all partitions of all batches.

    Attributes:
        store: where it is.
        wal_id: its name, the first part of all its keys.
        adopted: older WALs whose rows are rows of this one.
        index: the slots that were looked at; it may live as long as the process.
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
            if (slot := self._read(slot_key)) is not None:
                self._add(slot_key, slot)
        return self.index.look_up(keys, lambda slot_key: _keys_of(self._read(slot_key)))

    def seals(self, batch: int) -> Iterator[SealSlot]:
        """Yield the seal of each partition of a batch that has one."""
        slot_keys = sorted(key for key in self.store.list(self.batch_prefix(batch)) if key.endswith(".slot"))
        for slot_key in {key.rpartition("/")[0]: key for key in slot_keys}.values():
            if isinstance(slot := self._read(slot_key), SealSlot):
                yield slot

    def _read(self, slot_key: str) -> Slot | None:
        data = self.store.get(slot_key)
        return None if data is None else decode_slot(slot_key, data)

    def _add(self, slot_key: str, slot: Slot) -> None:
        self.index.add_slot(slot_key, _keys_of(slot))
        if slot.outcome is not None:
            prefix, _, name = slot_key.rpartition("/")
            number = int(name.removesuffix(".slot"))
            self.index.decide(f"{prefix}/{number - 1:06}.slot", slot.outcome)


def _keys_of(slot: Slot | None) -> Collection[MessageKey]:
    """Return the messages of a slot; none for the seal, and for a slot that was removed."""
    return slot.keys if isinstance(slot, DataSlot) else ()


@attrs.frozen
class PartitionWal:
    """The log of one partition of one batch; its methods perform the actions of the same names."""

    wal: Wal
    batch: int
    prefix: str

    def slot_key(self, number: int) -> str:
        return f"{self.prefix}{number:06}.slot"

    def read_log(self, known: Sequence[Slot] = ()) -> list[Slot]:
        """Return the slots from number 0 on, up to the first that is absent; those with rows without their payload.

        All payloads together would be the whole partition in memory.

        Args:
            known: the first slots, as they were read before.

        Raises:
            ProtocolError: a slot is not readable.
        """
        slots = [*known]
        while (data := self.wal.store.get(key := self.slot_key(len(slots)))) is not None:
            slot = decode_slot(key, data)
            slots.append(attrs.evolve(slot, payload=b"") if isinstance(slot, DataSlot) else slot)
        return slots

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

    def put_slot(self, number: int, slot: DataSlot) -> bool:
        """Store the rows of a chunk; return False if the slot exists, or did before the batch was removed."""
        key = self.slot_key(number)
        if not self.wal.store.put_if_absent(key, *encode_slot(slot)):
            return False
        if self.wal.store.get(self.wal.removed_key(self.batch)) is None:
            return True
        self.wal.store.delete(key)
        return False

    def put_seal(self, number: int, seal: SealSlot) -> bool:
        """Store the seal; return False if the slot exists."""
        return self.wal.store.put_if_absent(self.slot_key(number), *encode_slot(seal))
