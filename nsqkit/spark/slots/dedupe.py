"""The messages that the slots of a WAL have: whether a message that was delivered again has a row already.

A message is *included* if a slot with a stored outcome has it and its FIN did not fail. It is *open* if a slot without
one has it: the owner may still find that its FIN failed. The caller adds slots when it looks messages up, not when the
batch is planned, because a message may come back to a later wave of the same batch.

The index has no message ids but the lowest and the highest of each slot, since the ids of a WAL with ten million
messages would not fit into a worker. An nsqd's ids ascend, so few slots have to be read again for a look-up.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

import attrs

from nsqkit.spark.slots.records import FinOutcome, MessageKey

Bounds: TypeAlias = Mapping[tuple[str, str], tuple[bytes, bytes]]
"""The lowest and the highest id of each nsqd and topic."""


class Presence(enum.Enum):
    """Whether slots have a row of a message."""

    INCLUDED = "included"
    OPEN = "open"


@attrs.define(eq=False)
class _IndexedSlot:
    """The bounds of a slot, and the messages whose FIN failed; None while it is open."""

    bounds: Bounds
    failed: frozenset[MessageKey] | None = None

    def may_have(self, wanted: Bounds) -> bool:
        """Return whether ids of both may be the same."""
        for source, (lowest, highest) in wanted.items():
            own = self.bounds.get(source)
            if own is not None and own[0] <= highest and lowest <= own[1]:
                return True
        return False


@attrs.define(eq=False)
class DedupeIndex:
    """The slots that were added, by their keys."""

    _slots: dict[str, _IndexedSlot] = attrs.field(factory=dict, init=False)
    _outcomes: dict[str, FinOutcome] = attrs.field(factory=dict, init=False)  # of slots that are not yet added

    def add_slot(self, slot_key: str, keys: Iterable[MessageKey]) -> None:
        """Add a slot, which is open unless its outcome is known; one that was added before stays as it is."""
        if slot_key not in self._slots:
            outcome = self._outcomes.pop(slot_key, None)
            self._slots[slot_key] = _IndexedSlot(_bounds(keys), None if outcome is None else outcome.failed)

    def decide(self, slot_key: str, outcome: FinOutcome) -> None:
        """Apply the outcome of a slot. A store whose lists are late may return a slot after the next one."""
        if (slot := self._slots.get(slot_key)) is None:
            self._outcomes[slot_key] = outcome
        elif slot.failed is None:
            slot.failed = outcome.failed

    def remove(self, prefix: str) -> None:
        """Forget the slots whose keys begin with ``prefix``."""
        for slot_key in [slot_key for slot_key in self._slots if slot_key.startswith(prefix)]:
            del self._slots[slot_key]
        for slot_key in [slot_key for slot_key in self._outcomes if slot_key.startswith(prefix)]:
            del self._outcomes[slot_key]

    def has(self, slot_key: str) -> bool:
        """Return whether a slot was added."""
        return slot_key in self._slots

    @property
    def slot_keys(self) -> list[str]:
        """All slots."""
        return list(self._slots)

    def look_up(
        self, keys: Iterable[MessageKey], read: Callable[[str], Collection[MessageKey]]
    ) -> dict[MessageKey, Presence]:
        """Return the presence of each message that is in a slot.

        Args:
            keys: the messages.
            read: returns the messages of the slot with a key.
        """
        wanted = frozenset(keys)
        bounds = _bounds(wanted)
        found: dict[MessageKey, Presence] = {}
        for slot_key, slot in self._slots.items():
            if not slot.may_have(bounds):
                continue
            present = wanted.intersection(read(slot_key))
            if slot.failed is None:
                found = dict.fromkeys(present, Presence.OPEN) | found
            else:
                found |= dict.fromkeys(present - slot.failed, Presence.INCLUDED)
        return found


def _bounds(keys: Iterable[MessageKey]) -> Bounds:
    of_source: dict[tuple[str, str], list[bytes]] = {}
    for address, topic, id_ in keys:
        of_source.setdefault((address, topic), []).append(id_)
    return {source: (min(ids), max(ids)) for source, ids in of_source.items()}
