"""A phase of a world at rest in which a consumer may connect to fewer brokers than nsqlookupds list."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from nsqkit.consumer.consumer import Consumer
from tests.simulation.driver.network import HOST
from tests.simulation.driver.node import make_clock
from tests.simulation.driver.pace import pass_time
from tests.simulation.driver.relisting import ANNOUNCE_MAX, REQUEST_MAX, unlisted

if TYPE_CHECKING:
    from tests.simulation.driver.world import World

CONNECT_MAX: Final = 1.0
"""Seconds until a consumer is connected to one broker, and to another one when the user has left that."""


async def limit(world: World) -> None:
    """Have a consumer connect to one broker, and leave each that it is connected to, until none is listed for it.

    Raises:
        Broken: it is connected to more than one, or to none while another one is listed.
    """
    HOST.set("limited")
    world.note("── limiting")
    await pass_time(REQUEST_MAX)  # an operator may delete a topic
    await world.until(28, ANNOUNCE_MAX, lambda: unlisted(world))
    consumer = Consumer(
        next(iter(world.history.channels)),
        "limited#ephemeral",
        lookupd_http_addresses=[f"{lookupd}:4161" for lookupd in world.lookupds],
        lookupd_poll_interval=60.0,  # so that no list comes back meanwhile
        max_connections=1,
        clock=make_clock(),
        random=Random(f"{world.plan.seed}/limited"),
    )
    left: set[str] = set()

    def wrong() -> list[str]:
        found = {stats.address: stats.connected for stats in consumer.stats().connections}
        if len(found) == 1 and True in found.values() and left.isdisjoint(found):
            return []
        return [f"the connections are {found}, after {sorted(left)} were left"]

    async with consumer:
        for _ in world.nodes:
            await world.until(28, CONNECT_MAX, wrong)
            address = consumer.stats().connections[0].address
            left.add(address)
            consumer.disconnect_from_nsqd(address)
