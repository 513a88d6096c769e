"""What several nsqlookupds list, united.

The rule it guards: an entry is there if the last good answer of at least one nsqlookupd lists it. So it comes with
the first answer that has it, and goes when each nsqlookupd that had it has answered again without it. One that fails
does not answer: what it listed last stays, for however long it fails, and failures alone never take anything away.
nsqlookupds that disagree are all believed, for they learn of an nsqd at different times, and each may miss some.

An empty answer is an answer. What an nsqlookupd listed is forgotten only when it is no longer to be asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

T = TypeVar("T")

__all__ = ["MergedResponses"]


class MergedResponses(Generic[T]):
    """The last good answer of each nsqlookupd; an answer maps what makes an entry one to the entry."""

    def __init__(self) -> None:
        self._responses: dict[str, Mapping[str, T]] = {}

    def record(self, lookupd: str, entries: Mapping[str, T]) -> None:
        """Take the good answer of an nsqlookupd in the place of its last one."""
        self._responses[lookupd] = entries

    def forget(self, lookupd: str) -> None:
        """Take note that an nsqlookupd is no longer asked."""
        self._responses.pop(lookupd, None)

    def merged(self) -> dict[str, T]:
        """Return all entries; where several nsqlookupds list one, as the first of them to have answered tells it."""
        united: dict[str, T] = {}
        for listing in self._responses.values():
            for key, entry in listing.items():
                united.setdefault(key, entry)
        return united
