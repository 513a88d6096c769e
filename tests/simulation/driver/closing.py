"""The end of one life of a consumer, and clients that are left at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.broken import Broken, conclude
from tests.simulation.driver.pace import pass_time

if TYPE_CHECKING:
    from collections.abc import Sized
    from contextlib import AbstractAsyncContextManager

    from tests.simulation.driver.world import World

AT_ONCE: Final = 0.6
"""Seconds in which a consumer without handlers closes: nsqd may keep CLOSE_WAIT for 0.25 s."""

LATENCY_MAX: Final = 0.01
SLACK: Final = 1.0


async def visit(world: World, name: str, client: AbstractAsyncContextManager[object]) -> None:
    """Enter a client and leave it before its tasks have begun.

    Raises:
        Broken: that takes time.
    """
    begun = world.loop.time()
    async with client:
        pass
    seconds = world.loop.time() - begun
    conclude(30, seconds <= AT_ONCE, f"{name}, which was left at once, took {seconds:.3f} seconds to close")


class Closing:
    """The checks of one life of a consumer, which begins now."""

    def __init__(self, world: World, name: str, close_timeout: float) -> None:
        self._world = world
        self._name = name
        self._close_timeout = close_timeout
        self._entered = world.loop.time()
        self._begun = 0.0

    def begin(self) -> None:
        """Record that the consumer begins to close."""
        self._begun = self._world.loop.time()

    def check(self, handlers_ended_at: float, *, has_threads: bool) -> None:
        """Check how long a consumer needed that has closed now.

        Raises:
            Broken: it needed more than its time; or, without a fault, it waited for answers though no handler ran: what
                no handler has begun is requeued.
        """
        self._world.note("%s has closed", self._name)
        if self._name in self._world.threads.abandoned:
            self._world.reached.add("leaves its threads")
        now, timeout = self._world.loop.time(), self._close_timeout
        seconds = now - self._begun
        if seconds >= timeout:
            self._world.reached.add("stop needs the whole time")
        if seconds > timeout + 2 * min(timeout, 5.0) + SLACK:
            raise Broken(30, f"{self._name} took {seconds:.3f} seconds to close")
        seconds = now - max(self._begun, handlers_ended_at)
        if seconds > AT_ONCE and not has_threads and self._is_calm(list(self._world.nodes)):
            raise Broken(30, f"{self._name}, which has no handler, took {seconds:.3f} seconds to close")

    def _is_calm(self, nodes: list[str]) -> bool:
        return not self._world.has_link_faults and self._world.history.is_calm(nodes, self._entered)

    async def check_drained(self, topic: str, channel: str, others: Sized = ()) -> None:
        """Check that the channel has all messages that were not finished, where no fault could prevent it.

        Consumers that begin meanwhile, and are then among the ``others``, may hold some of them.
        """
        await pass_time(LATENCY_MAX)
        world = self._world
        nodes = [name for name, node in world.nodes.items() if node.is_wanted and node.held(topic, channel)]
        if nodes and not others and self._is_calm(nodes):
            raise Broken(18, f"messages are in flight at {nodes} after {self._name} has closed")
