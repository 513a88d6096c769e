"""Which nsqds a consumer wants, and why.

The rule it guards: an nsqd that the user named is wanted until the user takes it back; one that nsqlookupds list is
wanted for as long as they do, and as there is room: with the named ones, no more than a maximum are wanted. A
connection that stands is no reason to want anybody, and no longer being listed is no reason to hang up: it is when a
connection has ended that it matters whether its nsqd is still wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import attrs


@attrs.frozen
class Change:
    """What a new list has changed.

    Attributes:
        come: addresses that are wanted now, and were not.
        gone: addresses that were wanted, and are not any more.
    """

    come: list[str]
    gone: list[str]


class Nodes:
    """The addresses that are wanted.

    Args:
        named: those that the user has named.
        count_max: how many are wanted at most; those that are named are wanted in any case.
    """

    def __init__(self, named: Iterable[str] = (), *, count_max: int) -> None:
        self._named = dict.fromkeys(named)
        self._listed: dict[str, None] = {}
        self._count_max = count_max
        self._wanted = self._named.copy()

    def __contains__(self, address: str) -> bool:
        return address in self._wanted

    @property
    def wanted(self) -> list[str]:
        """All addresses, those that the user has named first."""
        return [*self._wanted]

    def is_named(self, address: str) -> bool:
        """Tell whether the user has named an address."""
        return address in self._named

    @property
    def listed_count(self) -> int:
        """How many are listed."""
        return len(self._listed)

    @property
    def left_out_count(self) -> int:
        """How many are listed for which there is no room."""
        return len(self._listed.keys() - self._wanted.keys())

    def add(self, address: str) -> None:
        """Want an address for good."""
        self._named[address] = None
        self._choose()

    def remove(self, address: str) -> None:
        """Want it no more, whoever wanted it; a later list may bring it back."""
        self._named.pop(address, None)
        self._listed.pop(address, None)
        self._choose()

    def set_listed(self, addresses: Iterable[str]) -> Change:
        """Take the list of all addresses that are discovered by now, in place of the last one.

        Where there is no room for all, those that were listed before keep their places.
        """
        before = self._wanted
        listed = dict.fromkeys(addresses)
        self._listed = {address: None for address in self._listed if address in listed} | listed
        self._choose()
        return Change(
            come=[address for address in self._wanted if address not in before],
            gone=[address for address in before if address not in self._wanted],
        )

    def _choose(self) -> None:
        room = max(self._count_max - len(self._named), 0)
        others = (address for address in self._listed if address not in self._named)
        self._wanted = self._named | dict.fromkeys(islice(others, room))
