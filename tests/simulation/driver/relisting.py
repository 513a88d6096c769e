"""A phase of a world at rest in which nsqlookupds hide brokers, and list them again, and consumers lose connections.

A connection lasts while its broker is not listed, and is made again only if it is listed when the connection ends.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.driver.consumers import ConsumerPlayer
from tests.simulation.driver.pace import pass_time

if TYPE_CHECKING:
    from tests.simulation.driver.world import World

LIFETIME_NS: Final = 2 * 10**9
"""Of a tombstone that ends before the world does."""
LIST_MAX: Final = 10.0
"""Seconds until a consumer is connected to the brokers that are listed, and to no other one."""
REQUEST_MAX: Final = 1.5
"""Seconds of a request, also of one that was begun before the end of all faults."""
RECONNECT_MAX: Final = 4.0
"""More than the longest delay before a consumer dials again."""
ANNOUNCE_MAX: Final = 20.0
"""Seconds until a broker has announced its topics: it dials an nsqlookupd every 15 s."""


async def relist(world: World, relisting: dict[str, Any]) -> None:
    """Hide brokers, cut the connections to all of them while they are hidden or listed again, and check the new ones.

    Or nsqlookupds are not reached, which changes no list; consumers that leave an nsqd then stay away from it. Or
    consumers leave all nsqlookupds, and then nothing is listed for them.

    Raises:
        Broken: a consumer is connected to other brokers than those that are listed.
    """
    players = [player for player in world.players.values() if isinstance(player, ConsumerPlayer) and player.lookupds]
    world.note("── relisting")
    world.history.trouble(world.nodes, world.loop.time())
    left: dict[ConsumerPlayer, str] = {}
    polls = 1.4 * max((player.poll_interval for player in players), default=0.0) + REQUEST_MAX
    await world.until(28, ANNOUNCE_MAX, lambda: unlisted(world))
    if relisting["cut"] == "no nsqlookupds":
        for player in players:
            _leave_lookupds(player)
    elif relisting["cut"] == "unreachable":
        await pass_time(polls)
        for lookupd in relisting["hidden"]:
            world.network.refuse(lookupd, math.inf)
        await pass_time(REQUEST_MAX)
        left = {player: _leave(player) for player in players if relisting.get("leaves")}
    else:
        for lookupd, nodes in relisting["hidden"].items():
            world.lookupds[lookupd].hide(nodes)
        await pass_time(polls + LIFETIME_NS / 1e9 if relisting["cut"] == "listed again" else polls)
    for player in players:
        for node in world.nodes:
            world.network.cut(player.name, node)
    await world.until(21, LIST_MAX, lambda: [line for player in players for line in _differences(world, player, left)])
    if left:
        await pass_time(RECONNECT_MAX)
        await world.until(21, 0, lambda: [line for player in left for line in _differences(world, player, left)])


def _leave_lookupds(player: ConsumerPlayer) -> None:
    """Have a consumer use no nsqlookupd any more, unless another one follows it soon."""
    while player.lookupds and player.consumer is not None and not player.leaving.is_set():
        player.consumer.disconnect_from_lookupd(f"{player.lookupds.pop()}:4161")


def _leave(player: ConsumerPlayer) -> str:
    """Have a consumer disconnect from the first nsqd that it is connected to; return the address."""
    for stats in player.consumer.stats().connections if player.consumer is not None else ():
        assert player.consumer is not None
        player.consumer.disconnect_from_nsqd(stats.address)
        return stats.address
    return ""


def _differences(world: World, player: ConsumerPlayer, left: dict[ConsumerPlayer, str]) -> list[str]:
    """Return a line if a consumer is not connected to the listed brokers that it has not left, or to another one."""
    if player.consumer is None:
        return []
    listed = {address for name in player.lookupds for address in world.lookupds[name].listed(player.topic)}
    listed -= {left.get(player, "")}
    found = {stats.address: stats.connected for stats in player.consumer.stats().connections}
    if found == dict.fromkeys(listed, True):
        return []
    return [f"{player.name} has the connections {found}, and {sorted(listed)} are listed"]


def unlisted(world: World) -> list[str]:
    """Return a line for each topic for which an nsqlookupd does not list all brokers."""
    return [
        f"{name} lists {found} for {topic}"
        for name, lookupd in world.lookupds.items()
        for topic in world.history.channels
        if len(found := lookupd.listed(topic)) < len(world.nodes)
    ]
