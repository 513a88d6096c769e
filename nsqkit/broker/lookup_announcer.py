"""The nsqlookupds of nsqd: a connection to each, and requests for the channels of a topic.

Each nsqlookupd has a task that connects, announces and reconnects, so none can hold up nsqd or another nsqlookupd. The
intervals are nsqd's (nsqd/lookup.go): a lost nsqlookupd is dialled every 15 s, and at once when there is something to
announce. ``LookupPeerSession`` implements the protocol of a connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlencode

import anyio

from nsqkit.broker.core.lookup_peer import PING_INTERVAL_NS, LookupPeerSession
from nsqkit.clock import NS_PER_S, Clock, move_on_after
from nsqkit.errors import RequestFailed
from nsqkit.transport.address import join_address, split_address
from nsqkit.transport.pump import Pump
from nsqkit.transport.tcp import connect_tcp
from nsqkit.transport.timer import Timer
from nsqkit.wire.documents import read_object
from nsqkit.wire.names import is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from anyio.abc import ByteStream, TaskGroup

    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.wire.lookup import LookupdInfo, Node

logger = logging.getLogger("nsqkit.broker")

DIAL_TIMEOUT: Final = 1.0
"""Seconds for a connection; as in nsqd."""

DIAL_INTERVAL_NS: Final = PING_INTERVAL_NS
"""The time between two attempts to connect; in nsqd one ticker is for both."""

ANSWER_SIZE_MAX: Final = 5 * 1024 * 1024
"""Bytes of an nsqlookupd's answer over HTTP; nsqd has no limit."""

Registrations: TypeAlias = Mapping[bytes, Collection[bytes]]
"""The channels of each topic, ephemeral ones too."""


class LookupAnnouncer:
    """Announces topics and channels to all configured nsqlookupds.

    ``options`` returns the present options, whose ``lookupd_tcp_addresses`` may change while it runs; ``registrations``
    returns the topics and channels to announce; both are called in the event loop. ``node`` is this nsqd, for IDENTIFY.
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
        """Have a change to topics, channels or addresses announced in the event loop's next turn.

        A change that is undone before that turn is not announced.
        """
        self._changed.set()

    async def run(self) -> None:
        """Run the connections until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._changed = anyio.Event()
                self._update_peers(tasks)
                self._announce()
                await self._changed.wait()

    def _update_peers(self, tasks: TaskGroup) -> None:
        addresses = dict.fromkeys(self._options().lookupd_tcp_addresses)
        for address in [address for address in self._peers if address not in addresses]:
            logger.info("LOOKUP(%s): removing peer", address)
            self._peers.pop(address).scope.cancel()
        for address in addresses:
            if address not in self._peers:
                logger.info("LOOKUP(%s): adding peer", address)
                self._peers[address] = _Peer(address, self._make_session)
                tasks.start_soon(self._peers[address].run, self._clock)

    def _announce(self) -> None:
        connected = [peer for peer in self._peers.values() if peer.is_connected]
        if connected:
            registrations, now_ns = self._registrations(), self._clock.now_ns()
            for peer in connected:
                peer.update(registrations, now_ns)
        for peer in self._peers.values():
            if not peer.is_connected:
                peer.connect_now()

    def _make_session(self) -> LookupPeerSession:
        return LookupPeerSession(
            self._node,
            self._registrations(),
            self._clock.now_ns(),
            answer_size_max=self._options().max_body_size,
        )

    @property
    def http_addresses(self) -> list[str]:
        """The HTTP addresses of the configured nsqlookupds that have answered IDENTIFY at least once."""
        infos = [peer.info for peer in self._peers.values()]
        return [
            join_address(info.broadcast_address, info.http_port) for info in infos if info and info.broadcast_address
        ]

    async def channels_to_create(self, topic: bytes) -> list[bytes]:
        """Return the channels to create with a new topic, so that they get its first messages.

        They are those that the nsqlookupds list, without ephemeral ones, which exist only with a consumer. This waits
        for the slowest nsqlookupd, for at most ``http_client_request_timeout_ns``.
        """
        addresses = self.http_addresses
        if not addresses:
            return []
        return lasting(await lookup_channels(addresses, topic, self._options(), self._clock))


def lasting(channels: Iterable[bytes]) -> list[bytes]:
    """Return the channels that are not ephemeral, in order."""
    return sorted(channel for channel in channels if not is_ephemeral(channel))


class _Peer:
    """The connection to one configured address.

    Attributes:
        scope: cancelled when the address is removed from the options.
        info: the data of the nsqlookupd from its last answer to IDENTIFY.
    """

    def __init__(self, address: str, make_session: Callable[[], LookupPeerSession]) -> None:
        self.scope = anyio.CancelScope()
        self.info: LookupdInfo | None = None
        self._address = address
        self._make_session = make_session
        self._connection: tuple[LookupPeerSession, Pump, Timer] | None = None
        self._pause = anyio.CancelScope()

    @property
    def is_connected(self) -> bool:
        """True while there is a session that can announce changes."""
        return self._connection is not None and not self._connection[0].ended

    def update(self, registrations: Registrations, now_ns: int) -> None:
        """Announce changes on the connection."""
        assert self._connection is not None
        self._connection[0].update(registrations, now_ns)
        self._process_events(now_ns)

    def connect_now(self) -> None:
        """Do not wait until the next attempt; if the present one fails, start another one at once."""
        self._pause.cancel()

    async def run(self, clock: Clock) -> None:
        """Connect again and again."""
        with self.scope:
            while True:
                self._pause = anyio.CancelScope()  # first: the next session has all changes until here
                dialled_ns = clock.now_ns()
                try:
                    await self._run_once(clock)
                except Exception:  # an error in nsqkit must not end the broker
                    logger.exception("LOOKUPD(%s): internal error", self._address)
                with self._pause:
                    await clock.wait_until(dialled_ns + DIAL_INTERVAL_NS)

    async def _run_once(self, clock: Clock) -> None:
        try:
            stream = await self._dial(clock)
        except (OSError, ValueError) as error:
            logger.error("LOOKUPD(%s): %s", self._address, error)
            return
        try:
            session = self._make_session()
            pump = Pump(session, stream, clock, after=self._process_events)
            timer = Timer(session, clock, after=self._process_events)
            self._connection = session, pump, timer
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(timer.run)
                await pump.run()
                tasks.cancel_scope.cancel()
            logger.error("LOOKUPD(%s): %s", self._address, session.error)
        finally:
            self._connection = None
            await anyio.aclose_forcefully(stream)

    async def _dial(self, clock: Clock) -> ByteStream:
        logger.info("LOOKUP connecting to %s", self._address)
        host, port = split_address(self._address)
        with move_on_after(clock, DIAL_TIMEOUT):
            return await connect_tcp(host or "localhost", port)
        raise TimeoutError(f"no connection within {DIAL_TIMEOUT:g} seconds")

    def _process_events(self, now_ns: int) -> None:
        assert self._connection is not None
        session, pump, timer = self._connection
        if session.info is not None and session.info is not self.info:
            self.info = session.info
            logger.info("LOOKUPD(%s): peer info %s", self._address, self.info)
            if not self.info.broadcast_address:
                logger.error("LOOKUPD(%s): no broadcast address", self._address)
        pump.wake()
        timer.check()


async def lookup_channels(addresses: Iterable[str], topic: bytes, options: BrokerOptions, clock: Clock) -> set[bytes]:
    """Return the channels of a topic that any nsqlookupd lists; all requests run at the same time.

    The addresses are ``host:port`` of HTTP routes. The timeouts are those of ``options``, where 0 means no limit.
    """
    from nsqkit.http.client import fetch_v1  # here, since h11 is not needed without an nsqlookupd

    found: set[bytes] = set()

    async def request(address: str) -> None:
        try:
            body = await fetch_v1(
                f"http://{address}/channels?{urlencode({'topic': topic})}",
                clock=clock,
                connect_timeout=options.http_client_connect_timeout_ns / NS_PER_S or None,
                request_timeout=options.http_client_request_timeout_ns / NS_PER_S or None,
                body_max=ANSWER_SIZE_MAX,
            )
            found.update(_decode_channels(body))
        except RequestFailed as error:
            name = topic.decode("ascii", "backslashreplace")
            logger.warning("failed to query nsqlookupd %s for channels of topic %s - %s", address, name, error)

    async with anyio.create_task_group() as tasks:
        for address in addresses:
            tasks.start_soon(request, address)
    return found


def _decode_channels(body: bytes) -> list[bytes]:
    try:
        names = read_object(body, {"channels": list}).get("channels", [])
    except ValueError as error:
        raise RequestFailed(f"the answer cannot be understood: {error}") from error
    channels = [name.encode("utf-8", "replace") for name in names if isinstance(name, str)]
    return [channel for channel in channels if is_valid_name(channel)]
