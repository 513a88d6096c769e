"""The addresses to connect to, from the nsqds that nsqlookupds list.

The user's filter selects nsqds as they are listed; then the user's address map replaces their addresses. The map is
for containers, whose nsqds may broadcast names that only other containers can resolve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from nsqkit.errors import OptionError
from nsqkit.lookup.responses import tcp_address
from nsqkit.transport.address import is_socket_path, split_address
from nsqkit.wire.lookup import Node

DiscoveryFilter: TypeAlias = Callable[[list[Node]], Iterable[Node]]
"""Returns the nodes to connect to."""

AddressMap: TypeAlias = Mapping[str, str | None] | Callable[[str], str | None]
"""Maps ``broadcast_address:tcp_port`` to the address to connect to; None excludes that nsqd.

An address that a mapping does not contain stays as it is.
"""


def select(
    nodes: Iterable[Node], *, discovery_filter: DiscoveryFilter | None, address_map: AddressMap | None
) -> list[str]:
    """Return the addresses to connect to, each once.

    Raises:
        OptionError: the address map returned something that is no address.
        Exception: any error of the user's filter or map.
    """
    listed = list(nodes)
    wanted = listed if discovery_filter is None else discovery_filter(listed)
    addresses = (_map(address_map, tcp_address(node)) for node in wanted)
    return list(dict.fromkeys(address for address in addresses if address is not None))


def _map(address_map: AddressMap | None, listed: str) -> str | None:
    if address_map is None:
        return listed
    mapped = address_map(listed) if callable(address_map) else address_map.get(listed, listed)
    if mapped is not None:
        _check(listed, mapped)
    return mapped


def _check(listed: str, mapped: object) -> None:
    if isinstance(mapped, str) and is_socket_path(mapped):
        return
    try:
        split_address(mapped)  # type: ignore[arg-type]  # it refuses other types, too
    except OptionError as error:
        raise OptionError(f"address_map makes {mapped!r} of {listed}: {error}") from error
