"""nsqd and its nsqlookupds: a connection to each, and the question which channels a topic has elsewhere.

The rule it guards: no nsqlookupd can hold up nsqd, nor another nsqlookupd. Each has a task of its own that connects,
announces, and tries again; addresses that lead nowhere are tried for as long as they are configured. nsqd's rhythm
(nsqd/lookup.go) is kept: a lost nsqlookupd is dialled every 15 s, and at once when there is something to announce.

How to read it: ``LookupAnnouncer.run`` keeps a ``_Peer`` for each configured address; ``_Peer.run`` keeps its
connection, on which a ``LookupPeerSession`` does the talking. ``lookup_channels`` at the end asks over HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlencode

import anyio

from nsqkit.broker.core.lookup_peer import PING_INTERVAL_NS, LookupPeerSession
from nsqkit.errors import RequestFailed
from nsqkit.transport.address import join_address, split_address
from nsqkit.transport.pump import Pump
from nsqkit.transport.tcp import connect_tcp
from nsqkit.transport.timer import Timer
from nsqkit.wire.documents import read_object
from nsqkit.wire.names import is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anyio.abc import ByteStream, TaskGroup

    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.clock import Clock
    from nsqkit.wire.lookup import LookupdInfo, Node

__all__ = ["LookupAnnouncer", "lookup_channels"]

logger = logging.getLogger("nsqkit.broker")

DIAL_TIMEOUT: Final = 1.0
"""Seconds until a connection must stand; nsqd's."""

DIAL_INTERVAL_NS: Final = PING_INTERVAL_NS
"""How long after one try to connect the next one comes: in nsqd both hang on the same ticker."""

ANSWER_SIZE_MAX: Final = 5 * 1024 * 1024
"""Bytes of an nsqlookupd's answer over HTTP; nsqd knows no limit."""

_NS_PER_S: Final = 1_000_000_000

Registrations: TypeAlias = Mapping[bytes, Collection[bytes]]
"""The channels of each topic, ephemeral ones, too."""


class LookupAnnouncer:
    """Tells all configured nsqlookupds which topics and channels there are.

    Args:
        options: returns the present options; ``lookupd_tcp_addresses`` may change while it runs.
        clock: the time.
        registrations: returns what there is to announce; called in the event loop.
        node: what the nsqlookupds are told of this nsqd.
    """

    def __init__(
        self,
        options: Callable[[], BrokerOptions],
        *,
        clock: Clock,
        registrations: Callable[[], Registrations],
        node: Node,
    ) -> None:
        self._options = options
        self._clock = clock
        self._registrations = registrations
        self._node = node
        self._peers: dict[str, _Peer] = {}
        self._changed = anyio.Event()

    def changed(self) -> None:
        """Say that topics, channels or addresses are others than before; what that means is looked at a little later.

        What is made and removed again, or removed and made again, before the event loop's next turn is not announced.
        """
        self._changed.set()

    async def run(self) -> None:
        """Keep the connections until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._changed = anyio.Event()
                self._follow_addresses(tasks)
                self._follow_registrations()
                await self._changed.wait()

    def _follow_addresses(self, tasks: TaskGroup) -> None:
        addresses = dict.fromkeys(self._options().lookupd_tcp_addresses)
        for address in self._peers.keys() - addresses.keys():
            logger.info("LOOKUP(%s): removing peer", address)
            self._peers.pop(address).scope.cancel()
        for address in addresses:
            if address not in self._peers:
                logger.info("LOOKUP(%s): adding peer", address)
                self._peers[address] = _Peer(address, self._connect)
                tasks.start_soon(self._peers[address].run, self._clock)

    def _follow_registrations(self) -> None:
        connected = [peer for peer in self._peers.values() if peer.is_connected]
        if connected:
            registrations, now_ns = self._registrations(), self._clock.now_ns()
            for peer in connected:
                peer.update(registrations, now_ns)
        for peer in self._peers.values():
            if not peer.is_connected:
                peer.hurry()

    def _connect(self) -> LookupPeerSession:
        return LookupPeerSession(
            self._node,
            self._registrations(),
            self._clock.now_ns(),
            answer_size_max=self._options().max_body_size,
        )

    # ---- asking ----------------------------------------------------------------------------------------------------

    @property
    def http_addresses(self) -> list[str]:
        """Where the nsqlookupds can be asked over HTTP: those that have answered once and are still configured."""
        infos = [peer.info for peer in self._peers.values()]
        return [
            join_address(info.broadcast_address, info.http_port)
            for info in infos
            if info and info.broadcast_address
        ]

    async def channels_to_create(self, topic: bytes) -> list[bytes]:
        """Return the channels that a new topic begins with, so that none of them misses its first messages.

        They are those that the nsqlookupds know, except ephemeral ones, which are nothing without a consumer. This
        waits for the slowest nsqlookupd, for at most ``http_client_request_timeout_ns``.
        """
        addresses = self.http_addresses
        if not addresses:
            return []
        options = self._options()
        channels = await lookup_channels(
            addresses,
            topic,
            connect_timeout=options.http_client_connect_timeout_ns / _NS_PER_S or None,
            request_timeout=options.http_client_request_timeout_ns / _NS_PER_S or None,
        )
        return sorted(channel for channel in channels if not is_ephemeral(channel))


class _Peer:
    """One configured address, and the connection to it.

    Args:
        address: ``host:port``.
        make_session: makes the session of each new connection.

    Attributes:
        scope: to be cancelled when the address is configured no more.
        info: what the nsqlookupd there has told of itself last.
    """

    def __init__(self, address: str, make_session: Callable[[], LookupPeerSession]) -> None:
        self.scope = anyio.CancelScope()
        self.info: LookupdInfo | None = None
        self._address = address
        self._make_session = make_session
        self._session: LookupPeerSession | None = None
        self._pump: Pump | None = None
        self._timer: Timer | None = None
        self._pause = anyio.CancelScope()

    @property
    def is_connected(self) -> bool:
        """True while there is a session to talk to."""
        return self._session is not None and not self._session.ended

    def update(self, registrations: Registrations, now_ns: int) -> None:
        """Announce what has changed."""
        assert self._session is not None
        self._session.update(registrations, now_ns)
        self._after()

    def hurry(self) -> None:
        """Do not wait until the next try to connect; if there is one now that fails, try once more."""
        self._pause.cancel()

    async def run(self, clock: Clock) -> None:
        """Connect again and again."""
        with self.scope:
            while True:
                self._pause = (
                    anyio.CancelScope()
                )  # what changes from here on is known to the next session only
                dialled_ns = clock.now_ns()
                try:
                    await self._run_once(clock)
                except Exception:  # a fault of ours must not be the end of the broker
                    logger.exception("LOOKUPD(%s): internal error", self._address)
                with self._pause:
                    await clock.wait_until(dialled_ns + DIAL_INTERVAL_NS)

    async def _run_once(self, clock: Clock) -> None:
        try:
            stream = await self._dial()
        except (OSError, ValueError) as error:
            logger.error("LOOKUPD(%s): %s", self._address, error)
            return
        try:
            await self._talk(stream, clock)
        finally:
            self._session = self._pump = self._timer = None
            await anyio.aclose_forcefully(stream)

    async def _talk(self, stream: ByteStream, clock: Clock) -> None:
        session = self._session = self._make_session()
        self._pump = Pump(session, stream, clock, after=self._after)
        self._timer = Timer(session, clock, after=self._after)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._timer.run)
            await self._pump.run()
            tasks.cancel_scope.cancel()
        logger.error("LOOKUPD(%s): %s", self._address, session.error)

    async def _dial(self) -> ByteStream:
        logger.info("LOOKUP connecting to %s", self._address)
        host, port = split_address(self._address)
        with anyio.move_on_after(DIAL_TIMEOUT):
            return await connect_tcp(host or "localhost", port)
        raise TimeoutError(f"no connection within {DIAL_TIMEOUT:g} seconds")

    def _after(self) -> None:
        """Act on what the session was told."""
        session, pump, alarm = self._session, self._pump, self._timer
        assert session is not None
        assert pump is not None
        assert alarm is not None
        if session.info is not None and session.info is not self.info:
            self.info = session.info
            logger.info("LOOKUPD(%s): peer info %s", self._address, self.info)
            if not self.info.broadcast_address:
                logger.error("LOOKUPD(%s): no broadcast address", self._address)
        pump.wake()
        alarm.check()


async def lookup_channels(
    addresses: Iterable[str],
    topic: bytes,
    *,
    connect_timeout: float | None,
    request_timeout: float | None,
) -> set[bytes]:
    """Return the channels of a topic that any of the nsqlookupds knows; all are asked at the same time.

    Args:
        addresses: ``host:port`` of their HTTP routes.
        topic: whose channels are wanted.
        connect_timeout: seconds until a connection must stand; None for any time.
        request_timeout: seconds until an answer must be there; None for any time.

    Whoever gives no usable answer is named in the log, and otherwise passed over.
    """
    found: set[bytes] = set()

    async def ask(address: str) -> None:
        try:
            found.update(await _ask_channels(address, topic, connect_timeout, request_timeout))
        except RequestFailed as error:
            name = topic.decode("ascii", "backslashreplace")
            logger.warning(
                "failed to query nsqlookupd %s for channels of topic %s - %s", address, name, error
            )

    async with anyio.create_task_group() as tasks:
        for address in addresses:
            tasks.start_soon(ask, address)
    return found


async def _ask_channels(
    address: str, topic: bytes, connect_timeout: float | None, request_timeout: float | None
) -> list[bytes]:
    from nsqkit.http.client import fetch_v1  # here, since h11 is not needed without an nsqlookupd

    body = await fetch_v1(
        f"http://{address}/channels?{urlencode({'topic': topic})}",
        connect_timeout=connect_timeout,
        request_timeout=request_timeout,
        body_max=ANSWER_SIZE_MAX,
    )
    try:
        names = read_object(body, {"channels": list}).get("channels", [])
    except ValueError as error:
        raise RequestFailed(f"the answer cannot be understood: {error}") from error
    channels = [name.encode("utf-8", "replace") for name in names if isinstance(name, str)]
    return [channel for channel in channels if is_valid_name(channel)]
