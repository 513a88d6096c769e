"""The common part of nsqds outside of this process, which a test server reaches by TCP and HTTP alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from nsqkit.admin.nsqd import NsqdAdmin
from nsqkit.errors import OptionError, RequestFailed, RequestRefused
from nsqkit.options.checks import take_seconds
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.errors import StartFailed, refuse
from nsqkit.testing.state import of_stats
from nsqkit.transport.tcp import connect
from nsqkit.wire.commands import encode_batch
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from anyio.abc import ByteStream

    from nsqkit.broker.server import Nsqd
    from nsqkit.options.durations import Seconds
    from nsqkit.testing.state import NsqdState

ATTEMPT_PAUSE: Final = 0.005
"""Real seconds between two attempts to reach an nsqd that starts."""

NOT_FOUND: Final = "TOPIC_NOT_FOUND"


class RealClock(ControlledClock):
    """The real time, for a server whose nsqd has its own clock."""

    def __init__(self, backend: str) -> None:
        super().__init__("real")
        self._backend = backend

    def advance(self, seconds: Seconds) -> Awaitable[None]:
        """Raise Unsupported."""
        refuse(self._backend, "the clock cannot be moved")

    def advance_to_next(self) -> Awaitable[None]:
        """Raise Unsupported."""
        refuse(self._backend, "the clock cannot be moved")


class _Admin(NsqdAdmin):
    """The client of the HTTP routes, with those that publish."""

    async def publish(self, topic: str, bodies: Sequence[bytes], delay_ms: int) -> None:
        params = {"topic": topic}
        if delay_ms:
            for body in bodies:
                await self._daemon.request("POST", "/pub", {**params, "defer": str(delay_ms)}, body=body)
        else:
            await self._daemon.request("POST", "/mpub", {**params, "binary": "true"}, body=encode_batch(bodies))


class ExternalNsqd:
    """An nsqd that answers at two addresses.

    Args:
        name: the backend, for errors.

    Attributes:
        tcp_address: where the proxy connects.
        http_address: ``host:port`` of the HTTP routes.
    """

    disk = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.tcp_address = ""
        self.http_address = ""

    @property
    def nsqd(self) -> Nsqd:
        """Raise Unsupported: the broker is not in this process."""
        refuse(self.name, "the broker's objects cannot be used")

    @property
    def _admin(self) -> _Admin:
        return _Admin(self.http_address)

    async def wait_answers(self, limit: float, check: Callable[[], None]) -> None:
        """Return when it answers; call ``check``, which may raise an error, before each attempt.

        Raises:
            StartFailed: it has not answered for ``limit`` real seconds.
        """
        with anyio.move_on_after(limit):
            while True:
                check()
                if await self.answers():
                    return
                await anyio.sleep(ATTEMPT_PAUSE)
        raise StartFailed(f"the nsqd at {self.tcp_address} and {self.http_address} has not answered for {limit:g} s")

    async def answers(self) -> bool:
        """Return whether it accepts connections and is healthy."""
        try:
            await (await connect(self.tcp_address)).aclose()
            await self._admin.ping()
        except RequestRefused as refusal:
            return refusal.status == 403  # an nsqd that requires TLS
        except (OSError, RequestFailed):
            return False
        return True

    async def connect(self, name: str) -> ByteStream:
        """Return a connection by TCP."""
        return await connect(self.tcp_address)

    async def state(self) -> NsqdState:
        """Return the present state, from ``/stats``."""
        return of_stats(await self._admin.stats())

    async def publish(self, topic: str, bodies: Sequence[bytes], delay: Seconds | None) -> None:
        """Publish messages by HTTP."""
        encode_topic(topic)
        if not bodies:
            raise OptionError("publish has no message; allowed are one or more bodies after the topic")
        delay_ms = 0 if delay is None else round(take_seconds("defer", delay) * 1000)
        await self._admin.publish(topic, bodies, delay_ms)

    async def reset(self) -> None:
        """Delete all topics."""
        await self.delete_topics(await self.topic_names())

    async def topic_names(self) -> set[str]:
        """Return the names of the present topics."""
        return {topic.topic_name for topic in (await self._admin.stats(include_clients=False)).topics}

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics, also those that are gone already."""
        for name in names:
            try:
                await self._admin.delete_topic(name)
            except RequestRefused as refusal:
                if refusal.message != NOT_FOUND:
                    raise
