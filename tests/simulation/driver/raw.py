"""A player that is no client of nsqkit: it sends each command in each state, and garbage, and reads or does not.

It publishes to a topic of its own, and answers no message that it gets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import BrokenResourceError, EndOfStream

from tests.simulation.broken import Broken
from tests.simulation.driver.network import HOST
from tests.simulation.driver.pace import pass_time
from tests.simulation.driver.pipeline import SECRET, Pipeline

if TYPE_CHECKING:
    from tests.simulation.driver.pipe import Stream
    from tests.simulation.driver.world import World
    from tests.simulation.plan import Step


def _sized(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def _identify(**values: object) -> bytes:
    return b"IDENTIFY\n" + _sized(json.dumps({"feature_negotiation": True, **values}).encode())


ID: Final = b"0123456789abcdef"
MPUB: Final = b"MPUB raw\n" + _sized((2).to_bytes(4, "big") + _sized(b"one", b"two"))
MANY: Final = b"NOP\n" * 3_000
UNREAD: Final = b"SUB raw u#ephemeral\nRDY 100\n" + (b"PUB raw\n" + _sized(b"." * 6_000)) * 60
"""More than a broker keeps for a client that reads nothing."""
STUCK: Final = b"  V2" + _identify(heartbeat_interval=1000) + UNREAD
"""A client that sends this, and then nothing, is silent for too long."""
FEW: Final = (b"PUB raw\n" + _sized(b"." * 6_000),) * 2
UNREAD_FEW: Final = b"SUB raw v#ephemeral\nRDY 5\n" + b"".join(FEW)
"""More than the kernel takes for a client that reads nothing."""
SENDING: Final = b"  V2" + _identify(heartbeat_interval=1000) + UNREAD_FEW
"""A client that sends this, and then a NOP each ``NOP_INTERVAL``, is not silent."""
NOP_INTERVAL: Final = 0.4
COMMANDS: Final = (
    *(MANY, UNREAD, UNREAD),
    *(b"NOP\n", b"CLS\n", b"RDY 1\n", b"RDY 0\n", b"RDY -1\n", b"RDY 99999\n", b"RDY x\n"),
    *(b"FIN " + ID + b"\n", b"REQ " + ID + b" 0\n", b"REQ " + ID + b" x\n", b"TOUCH " + ID + b"\n", b"FIN 1\n"),
    *(b"PUB raw\n" + _sized(b"body"), b"PUB raw\n" + _sized(b""), b"PUB no topic\n" + _sized(b"body")),
    *(MPUB, b"MPUB raw\n" + _sized((7).to_bytes(4, "big")), b"DPUB raw 10\n" + _sized(b"body")),
    *(b"DPUB raw -1\n" + _sized(b"body"), b"PUB raw\n\xff\xff\xff\xff", b"PUB raw\n\x00\x00\x00\x09cut"),
    *(_identify(), _identify(heartbeat_interval=-1), _identify(heartbeat_interval=1), _identify(snappy=True)),
    *(_identify(deflate=True), _identify(tls_v1=True), b"IDENTIFY\n" + _sized(b"{"), b"AUTH\n" + _sized(SECRET)),
    *(b"SUB raw r\n", b"SUB raw r#ephemeral\n", b"SUB raw\n", b"SUB raw r\nRDY 5\n", b"SUB raw r\nRDY 1\nCLS\n"),
    *(b"HELLO\n", b"\n", b"\xff" * 300, b"x" * 9_000, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"),
)
MAGICS: Final = (b"  V2", b"  V2", b"  V2", b"  V2", b"  V1", b"", b"  V")
READ_SIZE: Final = 4_096
ANSWER_MAX: Final = 5.0
"""Seconds for an answer over HTTP."""
CHUNKED: Final = b"POST /pub?topic=raw HTTP/1.1\r\nHost: nsqd\r\nTransfer-Encoding: chunked\r\n\r\n"


class RawPlayer:
    """Connections that send bytes as the plan has them."""

    is_connected = True

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.is_running = False
        self._world = world
        self._nodes = list(options.get("nodes", ()))
        self._pipelines: list[Pipeline] = []
        self._stuck: list[tuple[str, Stream]] = []  # connections from which nothing is read, with their nodes

    async def run(self) -> None:
        """Play; return when the world has ended."""
        await self._world.ended.wait()

    def act(self, step: Step) -> None:
        """Do one step of the plan; one that does not apply does nothing."""
        if step.verb == "send" and step.values.get("stuck") and self._nodes:
            self._world.tasks.start_soon(self._send_and_stop, step.values)
        elif step.verb == "send" and step.values.get("over_limit") and self._nodes:
            self._world.tasks.start_soon(self._publish_over_limit, step.values)
        elif step.verb == "send" and self._nodes:
            self._world.tasks.start_soon(self._send, step.values)
        elif step.verb == "pipeline" and self._nodes:
            self._world.tasks.start_soon(self._pipeline, step.values)
        elif step.verb == "leave":
            for pipeline in self._pipelines:
                pipeline.cancel()

    async def _pipeline(self, values: dict[str, Any]) -> None:
        HOST.set(self.name)
        node = self._nodes[values.get("which", 0) % len(self._nodes)]
        self._pipelines.append(pipeline := Pipeline(self._world, node, values))
        await pipeline.run()

    def unanswered(self) -> list[str]:
        """Return a line for each pipeline without all its answers, and for each client that reads nothing and stays."""
        stuck = [node for node, stream in self._stuck if not (stream.peer.is_over or self._world.has_link_faults)]
        lines = [f"{node} has not ended a connection whose client reads nothing" for node in stuck]
        return [line for pipeline in self._pipelines for line in pipeline.left()] + lines

    async def _send_and_stop(self, values: dict[str, Any]) -> None:
        """Send much, and read nothing; the broker has to end the connection."""
        HOST.set(self.name)
        node = self._nodes[values.get("which", 0) % len(self._nodes)]
        if values["stuck"] == "sends" and self._world.plan.nodes[node].get("mem_queue_size", 10_000) < len(FEW):
            return  # it may drop what nothing reads
        try:
            stream = await self._world.network.connect_by_hand(node, 4150)
        except OSError:
            return
        self._stuck.append((node, stream))
        try:
            async with anyio.create_task_group() as tasks:
                if values["stuck"] == "sends":
                    tasks.start_soon(self._go_on_sending, stream)
                else:
                    tasks.start_soon(self._send_all, stream, STUCK)
                await self._world.ended.wait()
                tasks.cancel_scope.cancel()
        finally:
            await anyio.aclose_forcefully(stream)

    async def _publish_over_limit(self, values: dict[str, Any]) -> None:
        """Publish a message that is too long, over HTTP and in chunks, so that its length is not known before.

        Raises:
            Broken: it is accepted.
        """
        HOST.set(self.name)
        node = self._nodes[values.get("which", 0) % len(self._nodes)]
        limit = self._world.plan.nodes[node].get("max_msg_size", 0)
        if not limit:
            return
        body = b"x" * (limit + values["over_limit"])
        try:
            stream = await self._world.network.connect_by_hand(node, 4151)
        except OSError:
            return
        try:
            with anyio.move_on_after(ANSWER_MAX):
                await stream.send(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
                if (await stream.receive()).startswith(b"HTTP/1.1 200"):
                    raise Broken(11, f"{node} has accepted {len(body)} bytes, and its limit is {limit}")
        except (BrokenResourceError, EndOfStream):
            pass
        finally:
            await anyio.aclose_forcefully(stream)

    async def _go_on_sending(self, stream: Stream) -> None:
        await self._send_all(stream, SENDING)
        while True:
            await pass_time(NOP_INTERVAL)
            await self._send_all(stream, b"NOP\n")

    @staticmethod
    async def _send_all(stream: Stream, data: bytes) -> None:
        with suppress(BrokenResourceError):
            await stream.send(data)

    async def _send(self, values: dict[str, Any]) -> None:
        HOST.set(self.name)
        node = self._nodes[values.get("which", 0) % len(self._nodes)]
        try:
            stream = await self._world.network.connect_by_hand(node, values.get("port", 4150))
        except OSError:
            return
        data = MAGICS[values.get("magic", 0) % len(MAGICS)]
        data += b"".join(COMMANDS[number % len(COMMANDS)] for number in values.get("commands", ()))
        try:
            with anyio.move_on_after(values.get("for_us", 1000) / 1e6):
                await stream.send(data)
                if values.get("reads"):
                    await self._read(stream.receive)
                await self._world.healed.wait()
        except (BrokenResourceError, EndOfStream):
            pass
        finally:
            if values.get("resets"):
                stream.resets_on_close = True
            await anyio.aclose_forcefully(stream)

    async def _read(self, receive: Callable[[int], Any]) -> None:
        while not self._world.healed.is_set():
            await receive(READ_SIZE)
