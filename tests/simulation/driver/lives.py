"""A server of a driver world that ends and begins again, one life after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from tests.simulation.driver.network import HOST

if TYPE_CHECKING:
    from tests.simulation.driver.world import World


class Lives:
    """The lives of one server, which ``_serve`` runs until it is cancelled."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._ended.set()
        self._is_wanted = False

    def start(self) -> None:
        """Begin a life once the one before has ended, unless there is one."""
        if self._is_wanted:
            return
        self._is_wanted = True
        before, self._ended, self._scope = self._ended, anyio.Event(), anyio.CancelScope()
        self._world.tasks.start_soon(self._live, before, self._ended, self._scope)

    async def _live(self, before: anyio.Event, ended: anyio.Event, scope: anyio.CancelScope) -> None:
        HOST.set(self.name)
        await before.wait()
        try:
            with scope:
                await self._serve()
        finally:
            ended.set()

    async def _serve(self) -> None:
        raise NotImplementedError

    def end(self, *, is_killed: bool = False) -> None:
        """End the life; the connections of a server that is killed end at once."""
        self._is_wanted = False
        if is_killed:
            self._world.network.drop_host(self.name)
        self._scope.cancel()
