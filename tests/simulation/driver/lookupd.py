"""An nsqlookupd of a driver world: the real ``Nsqlookupd`` and its lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from nsqkit.lookupd.options import LookupdOptions
from nsqkit.lookupd.server import Nsqlookupd
from tests.simulation.driver.lives import Lives
from tests.simulation.driver.node import make_clock

if TYPE_CHECKING:
    from tests.simulation.driver.world import World
    from tests.simulation.plan import Step


class Lookupd(Lives):
    """One nsqlookupd; its end forgets all registrations."""

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        super().__init__(world, name)
        self._options = options
        self._nsqlookupd: Nsqlookupd | None = None

    async def _serve(self) -> None:
        options = LookupdOptions(
            tcp_address=f"{self.name}:4160",
            http_address=f"{self.name}:4161",
            broadcast_address=self.name,
            **self._options,
        )
        async with Nsqlookupd(options, clock=make_clock()) as self._nsqlookupd:
            self._world.note("%s runs", self.name)
            await anyio.sleep_forever()

    def act(self, step: Step) -> None:
        """Do one step of the plan; one that does not apply does nothing."""
        if step.verb == "start":
            self.start()
        elif step.verb in {"kill", "stop"} and self._is_wanted:
            self.end(is_killed=step.verb == "kill")
        elif step.verb == "tombstone topic":
            self.hide(step.values["nodes"])

    def hide(self, nodes: list[str]) -> None:
        """List none of the nodes for any topic until the tombstones expire."""
        if self._nsqlookupd is not None and self._is_wanted:
            now_ns = self._nsqlookupd.clock.now_ns()
            for topic in self._nsqlookupd.registry.topics():
                for node in nodes:
                    self._nsqlookupd.registry.tombstone(topic, f"{node}:4151", now_ns)

    def listed(self, topic: str) -> set[str]:
        """Return the addresses that it lists for a topic."""
        if self._nsqlookupd is None:
            return set()
        now_ns = self._nsqlookupd.clock.now_ns()
        return {
            f"{peer.node.broadcast_address}:{peer.node.tcp_port}"
            for peer in self._nsqlookupd.registry.producers(topic.encode(), now_ns)
        }
