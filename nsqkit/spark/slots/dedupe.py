"""The messages that the slots of a WAL have: whether a message that was delivered again has a row already.

A message is *included* if a slot with a FIN record has it and its FIN did not fail. It is *open* if a slot without a
FIN record has it: the owner may still find that its FIN failed. The caller adds slots when it looks messages up, not
when the batch is planned, because a message may come back to a later wave of the same batch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import attrs

from nsqkit.spark.slots.records import FinRecord, MessageKey


class Presence(enum.Enum):
    """Whether slots have a row of a message."""

    INCLUDED = "included"
    OPEN = "open"


@attrs.define(eq=False)
class DedupeIndex:
    """The messages of the slots that were added, by the key of each slot."""

    _open: dict[str, frozenset[MessageKey]] = attrs.field(factory=dict, init=False)
    _decided: dict[str, frozenset[MessageKey]] = attrs.field(factory=dict, init=False)

    def add_slot(self, slot_key: str, keys: Iterable[MessageKey]) -> None:
        """Add a slot, which is open; one that was added before stays as it is."""
        if slot_key not in self._decided:
            self._open.setdefault(slot_key, frozenset(keys))

    def decide(self, slot_key: str, fin: FinRecord) -> None:
        """Apply the FIN record of a slot that was added."""
        if (keys := self._open.pop(slot_key, None)) is not None:
            self._decided[slot_key] = keys - fin.failed

    def remove(self, prefix: str) -> None:
        """Forget the slots whose keys begin with ``prefix``."""
        for slots in (self._open, self._decided):
            for slot_key in [slot_key for slot_key in slots if slot_key.startswith(prefix)]:
                del slots[slot_key]

    def has(self, slot_key: str) -> bool:
        """Return whether a slot was added."""
        return slot_key in self._open or slot_key in self._decided

    @property
    def open_slots(self) -> list[str]:
        """The slots without a FIN record."""
        return list(self._open)

    @property
    def slot_keys(self) -> list[str]:
        """All slots."""
        return [*self._open, *self._decided]

    def look_up(self, keys: Iterable[MessageKey]) -> dict[MessageKey, Presence]:
        """Return the presence of each message that is in a slot."""
        found = {}
        for key in keys:
            if any(key in slot for slot in self._decided.values()):
                found[key] = Presence.INCLUDED
            elif any(key in slot for slot in self._open.values()):
                found[key] = Presence.OPEN
        return found
