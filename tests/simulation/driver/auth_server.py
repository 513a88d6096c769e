"""An auth server of a driver world: HTTP by hand, grants that expire soon, and its faults.

It grants the same to each secret with the mark of ``leaks.py``, and to that of ``pipeline.py``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio import BrokenResourceError, EndOfStream

from tests.simulation.auth.leaks import MARK
from tests.simulation.driver.lives import Lives
from tests.simulation.driver.pipeline import SECRET

if TYPE_CHECKING:
    from tests.simulation.driver.pipe import Stream
    from tests.simulation.driver.world import World
    from tests.simulation.plan import Step

PORT: Final = 4180
RECEIVE_SIZE: Final = 65_536
ALL: Final = ("publish", "subscribe")
DELAY: Final = 1.5
"""Seconds that a slow answer takes: more than a handshake may last without it."""


class AuthServer(Lives):
    """One auth server.

    Args:
        world: its world.
        name: its name in the plan.
        options: ``ttl``, the seconds of a grant, and ``lingers``: it closes no connection by itself.
    """

    is_connected = True
    is_running = False  # no client of nsqkit

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        super().__init__(world, name)
        self._ttl: int = options.get("ttl", 60)
        self._lingers: bool = options.get("lingers", False)
        self._how = "grant"
        self._permissions: list[str] = list(ALL)
        self._hanging: dict[anyio.CancelScope, None] = {}

    async def run(self) -> None:
        """Begin its first life."""
        self.start()

    async def _serve(self) -> None:
        async with (
            await self._world.network.listen_by_hand(f"{self.name}:{PORT}") as listener,
            anyio.create_task_group() as tasks,
        ):
            await listener.serve(self._answer_request, tasks)

    def heal(self) -> None:
        """End all faults; requests that hang lose their connections."""
        self._how, self._permissions = "grant", list(ALL)
        for scope in self._hanging:
            scope.cancel()
        self.start()

    def act(self, step: Step) -> None:
        """Do one step of the plan; one that does not apply does nothing."""
        match step.verb:
            case "kill" if self._is_wanted:
                self.end(is_killed=True)
            case "start":
                self.start()
            case "refuse":
                self._world.network.refuse(self.name, self._world.loop.time() + step.values["for_us"] / 1e6)
            case "answer":
                self._how = step.values["how"]
                self._permissions = step.values.get("permissions", list(ALL))

    # ---- requests ------------------------------------------------------------------------------------------------

    async def _answer_request(self, stream: Stream) -> None:
        """Answer one request."""
        try:
            secret = await _read_request(stream)
            how = self._how
            self._world.note("%s: %s asks for a grant, answer: %s", self.name, stream.remote_host, how)
            if how == "hang":
                await self._hang(stream)
                return
            if how == "slow":
                with anyio.move_on_after(DELAY):
                    await stream.receive()  # the end, if the broker gives up before
            if how == "cut":
                stream.resets_on_close = True
                return
            answer, is_grant = self._answer(how, secret)
            await stream.send(answer)
            if is_grant:
                self._world.grants.grant(stream.remote_host, secret, self._ttl, self._permissions)
            if self._lingers:
                await stream.receive()
        except (BrokenResourceError, EndOfStream):
            pass
        finally:
            await anyio.aclose_forcefully(stream)

    async def _hang(self, stream: Stream) -> None:
        """Wait until the broker gives up, or all faults end."""
        with anyio.CancelScope() as scope:
            self._hanging[scope] = None
            try:
                await stream.receive()
            finally:
                del self._hanging[scope]

    def _answer(self, how: str, secret: str) -> tuple[bytes, bool]:
        """Return the answer, and whether it is a grant."""
        if how == "error":
            return _response(500, b"no database"), False
        if how == "garbage":
            return _response(200, b'{"ttl": 60, "authorizations": ['), False
        if MARK not in secret and secret != SECRET.decode():
            return _response(403, b"unknown"), False
        authorizations = [{"topic": ".*", "channels": [".*"], "permissions": self._permissions}]
        fields = {
            "ttl": self._ttl,
            "identity": self.name,
            "authorizations": authorizations if self._permissions else [],
        }
        return _response(200, json.dumps(fields).encode()), True


async def _read_request(stream: Stream) -> str:
    """Return the secret in the query, or in the document, of a request."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive(RECEIVE_SIZE)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += await stream.receive(RECEIVE_SIZE)
    fields = json.loads(body) if body else parse_qs(urlsplit(first.split(" ")[1]).query)
    return str(fields["secret"][0])


def _response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
