"""Checks of a consumer that has closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.broken import Broken
from tests.simulation.driver.pace import pass_time

if TYPE_CHECKING:
    from tests.simulation.driver.world import World

AT_ONCE: Final = 0.6
"""Seconds in which a consumer without handlers closes: nsqd may keep CLOSE_WAIT for 0.25 s."""

LATENCY_MAX: Final = 0.01


def check_at_once(world: World, name: str, seconds: float, since: float) -> None:
    """Check that a consumer without handlers has not waited for answers: what it holds is requeued."""
    if seconds > AT_ONCE and not world.has_link_faults and world.history.is_calm(world.nodes, since):
        raise Broken(30, f"{name}, which has no handler, took {seconds:.3f} seconds to close")


async def check_drained(world: World, name: str, topic: str, channel: str, since: float) -> None:
    """Check that the channel has all messages that were not finished, where no fault could prevent it."""
    await pass_time(LATENCY_MAX)
    nodes = [node for node in world.nodes if world.nodes[node].held(topic, channel)]
    if nodes and not world.has_link_faults and world.history.is_calm(nodes, since):
        raise Broken(18, f"messages are in flight at {nodes} after {name} has closed")
