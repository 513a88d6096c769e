"""A phase of a world at rest in which an operator removes all nsqlookupds from the brokers' options, and adds them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from nsqkit.admin.nsqd import NsqdAdmin
from tests.simulation.driver.network import HOST
from tests.simulation.driver.relisting import ANNOUNCE_MAX, unlisted

if TYPE_CHECKING:
    from tests.simulation.driver.world import World

OPTION: Final = "nsqlookupd_tcp_addresses"
CLOSE_MAX: Final = 1.0
"""Seconds until a connection to an nsqlookupd that was removed has ended at both ends."""


async def reconfigure(world: World) -> None:
    """Remove and add nsqlookupds.

    Raises:
        Broken: a broker keeps a connection to one that was removed, or does not announce its topics to one, or twice.
    """
    HOST.set("operator")
    world.note("── reconfiguring")
    addresses = [f"{name}:4160" for name in world.lookupds]
    for wanted, seconds in (([], CLOSE_MAX), (addresses, ANNOUNCE_MAX)):
        for node in world.nodes.values():
            await NsqdAdmin(node.http_address).put_config(OPTION, wanted)
        await world.until(21, seconds, partial(_wrong, world, sorted(world.nodes) if wanted else []))


def _wrong(world: World, nodes: list[str]) -> list[str]:
    """Return a line for each nsqlookupd without one connection of each of the brokers, or without all their topics."""
    found = {name: world.network.clients_at(f"{name}:4160") for name in world.lookupds}
    hosts = {name: sorted(each.hosts[0] for each in found[name] if not each.server.is_over) for name in found}
    lines = [f"{name} has connections of {hosts[name]}, not {nodes}" for name in hosts if hosts[name] != nodes]
    return lines or (unlisted(world) if nodes else [])
