"""The merged responses of several nsqlookupds.

An entry exists if the last successful response of at least one nsqlookupd lists it. nsqlookupds register an nsqd at
different times, and each may miss some, so none overrules another. A failed request changes nothing: the entries of
that nsqlookupd stay until it responds again, or until it is removed. An empty list is a response like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class MergedResponses(Generic[T]):
    """The last successful response of each nsqlookupd, as a mapping of keys to entries."""

    def __init__(self) -> None:
        self._responses: dict[str, Mapping[str, T]] = {}

    def record(self, lookupd: str, entries: Mapping[str, T]) -> None:
        self._responses[lookupd] = entries

    def forget(self, lookupd: str) -> None:
        self._responses.pop(lookupd, None)

    def merged(self) -> dict[str, T]:
        """Return the entries of all responses; for a key that several have, the entry of the first recorded one."""
        merged: dict[str, T] = {}
        for response in self._responses.values():
            for key, entry in response.items():
                merged.setdefault(key, entry)
        return merged
