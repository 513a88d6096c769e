"""Which nsqds a consumer wants, and why.

The rule it guards: an nsqd that the user named is wanted until the user takes it back; one that nsqlookupds list is
wanted for as long as they do. A connection that stands is no reason to want anybody, and no longer being listed is no
reason to hang up: it is when a connection has ended that it matters whether its nsqd is still wanted.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    """

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._named = dict.fromkeys(named)
        self._listed: dict[str, None] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._named or address in self._listed

    @property
    def wanted(self) -> list[str]:
        """All addresses, those that the user has named first."""
        return [*(self._named | self._listed)]

    def add(self, address: str) -> None:
        """Want an address for good."""
        self._named[address] = None

    def remove(self, address: str) -> None:
        """Want it no more, whoever wanted it; a later list may bring it back."""
        self._named.pop(address, None)
        self._listed.pop(address, None)

    def listed(self, addresses: Iterable[str]) -> Change:
        """Take the list of all addresses that are discovered by now, in place of the last one."""
        before = self.wanted
        self._listed = dict.fromkeys(addresses)
        return Change(
            come=[address for address in self.wanted if address not in before],
            gone=[address for address in before if address not in self],
        )
