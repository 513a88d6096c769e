"""The addresses of nsqds to which a consumer has to connect: the wanted ones.

An nsqd that the user named is wanted until the user removes it. One that nsqlookupds list is wanted while they list it,
up to a maximum that the named ones count for, too. An existing connection is closed only by the user: whether its nsqd
is still wanted matters when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice


class Nodes:
    """The addresses that are wanted, at most ``count_max``; the named ones are wanted in any case."""

    def __init__(self, named: Iterable[str] = (), *, count_max: int) -> None:
        self._named = dict.fromkeys(named)
        self._listed: dict[str, None] = {}
        self._count_max = count_max
        self._wanted = self._named.copy()

    def __contains__(self, address: str) -> bool:
        return address in self._wanted

    @property
    def wanted(self) -> list[str]:
        """All wanted addresses, the named ones first."""
        return [*self._wanted]

    def is_named(self, address: str) -> bool:
        return address in self._named

    @property
    def listed_count(self) -> int:
        return len(self._listed)

    @property
    def left_out_count(self) -> int:
        """How many are listed and not wanted, because of the maximum."""
        return len(self._listed.keys() - self._wanted.keys())

    def add(self, address: str) -> None:
        self._named[address] = None
        self._choose()

    def remove(self, address: str) -> None:
        """Remove an address, named or listed; a later list may add it again."""
        self._named.pop(address, None)
        self._listed.pop(address, None)
        self._choose()

    def set_listed(self, addresses: Iterable[str]) -> list[str]:
        """Replace the listed addresses; return those that are not wanted any more.

        If there are more than the maximum, addresses that were wanted before stay wanted.
        """
        before = self._wanted
        listed = dict.fromkeys(addresses)
        self._listed = {address: None for address in self._listed if address in listed} | listed
        self._choose()
        return [address for address in before if address not in self._wanted]

    def _choose(self) -> None:
        count = max(self._count_max - len(self._named), 0)
        others = (address for address in self._listed if address not in self._named)
        self._wanted = self._named | dict.fromkeys(islice(others, count))
