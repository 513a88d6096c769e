"""A client that sends its commands in one write, and reads late: each has its answer, in order.

It sends one more after that, or it has ended its stream before it reads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import BrokenResourceError, EndOfStream

from tests.simulation.broken import Broken
from tests.simulation.driver.pace import pass_time

if TYPE_CHECKING:
    from tests.simulation.driver.pipe import Stream
    from tests.simulation.driver.world import World

IDENTITY: Final = b'{"feature_negotiation": true, "heartbeat_interval": 30000}'
BEGIN: Final = b"  V2IDENTIFY\n" + len(IDENTITY).to_bytes(4, "big") + IDENTITY
SECRET: Final = b"secret"
AUTH: Final = b"AUTH\n" + len(SECRET).to_bytes(4, "big") + SECRET
SUBSCRIBE: Final = b"SUB raw pipeline#ephemeral\n"
PUBLISH: Final = b"PUB raw\n\x00\x00\x00\x04body"
FINISH: Final = b"FIN 0123456789abcdef\n"
"""The broker refuses it, with a frame that is three times as long."""
READ_SIZE: Final = 1_000


class Pipeline:
    """One connection of such a client to a node."""

    def __init__(self, world: World, node: str, values: dict[str, Any]) -> None:
        self._world = world
        self._node = node
        count, every = values.get("count", 1), values.get("publish_every", 0)
        is_publish = [bool(every) and number % every == 0 for number in range(count)]
        has_auth = bool(world.nodes[node].auth_servers)
        self._data = BEGIN + AUTH * has_auth + SUBSCRIBE
        self._data += b"".join(PUBLISH if each else FINISH for each in is_publish)
        self._ends = values.get("ends", False)
        answers = [b"OK" if each else b"E_FIN_FAILED" for each in is_publish]
        self._expected = [b"{", *[b"{"] * has_auth, b"OK", *answers, *[b"OK"] * (not self._ends)]
        self._after = values.get("after_us", 0) / 1e6
        self._frames: list[bytes] = []
        self._stream: Stream | None = None
        self._scope = anyio.CancelScope()

    def cancel(self) -> None:
        self._scope.cancel()

    def left(self) -> list[str]:
        """Return a line if answers are missing that no fault holds up."""
        stream = self._stream
        is_silent = not self._frames and self._world.has_link_faults
        if stream is None or stream.late_at == math.inf or is_silent:
            return []
        return [f"a client has {len(self._frames)} of {len(self._expected)} answers of {self._node}"]

    async def run(self) -> None:
        """Send, and read all answers.

        Raises:
            Broken: there are others, or the broker ends the connection for no reason.
        """
        begun = self._world.loop.time()
        try:
            with self._scope:
                await self._talk()
        except OSError:
            return
        except (BrokenResourceError, EndOfStream):
            if not self._world.is_over and self._is_calm(begun):
                raise Broken(25, f"{self._node} has ended a connection after {self._frames[-1:]}") from None
            return
        finally:
            if self._stream is not None:
                stream, self._stream = self._stream, None
                await anyio.aclose_forcefully(stream)
        are_right = all(map(bytes.startswith, self._frames, self._expected))  # those that it has got
        if self._is_calm(begun) and not are_right:
            raise Broken(11, f"{self._frames} are no answers to {self._data!r}")

    def _is_calm(self, since: float) -> bool:
        world = self._world
        return not (world.has_link_faults or world.has_disk_faults) and world.history.is_calm([self._node], since)

    async def _talk(self) -> None:
        stream = self._stream = await self._world.network.connect_by_hand(self._node, 4150)
        await stream.send(self._data)
        if self._ends:
            await stream.send_eof()
        await pass_time(self._after)
        if not self._ends:
            await self._read(stream, len(self._expected) - 1)
            await stream.send(PUBLISH)  # the broker reads again after it has processed the others, in several turns
        await self._read(stream, len(self._expected))

    async def _read(self, stream: Stream, count: int) -> None:
        data = b""
        while len(self._frames) < count:
            data += await stream.receive(READ_SIZE)
            while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                if data[8:end] != b"_heartbeat_":
                    self._frames.append(data[8:end])
                data = data[end:]
