"""What the auth servers of a driver world have granted, the requests of the brokers, and what these have to lead to."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import attrs

from nsqkit.broker import auth
from nsqkit.broker.external_services import ExternalServices
from nsqkit.errors import AuthFailed, ConnectTimeout, ProtocolError, RequestFailed, Unauthorized
from tests.simulation.auth.leaks import check_texts
from tests.simulation.broken import Broken, conclude
from tests.simulation.driver.network import HOST, NSQD_PORT

if TYPE_CHECKING:
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.broker.core.session.auth import AuthState
    from nsqkit.broker.core.session.session import Session
    from tests.simulation.driver.history import Publish
    from tests.simulation.driver.world import World

ANSWER_MAX: Final = 0.1
"""Seconds in which the answer of an auth server reaches the session that waits for it, with no fault."""
LATE_MAX: Final = 10.0
"""Seconds in which it does with faults of the network or of a disk: a thread has to decode it."""
ROUNDING: Final = 0.01
REFUSALS: Final = (AuthFailed, Unauthorized)
PERMANENT: Final = (ProtocolError, *REFUSALS)

ASKED: ContextVar[list[str]] = ContextVar("ASKED")
"""The auth servers that were asked for one client."""


@attrs.frozen
class _Grant:
    node: str
    secret: str
    at: float
    end: float
    permissions: tuple[str, ...]


@attrs.define(eq=False)
class _Request:
    """A request of a broker.

    Attributes:
        node: the broker.
        secret: that of the client.
        end: when it has certainly ended.
        since: a grant from then on is for it; infinite if another request has had the same secret meanwhile.
    """

    node: str
    secret: str
    end: float
    since: float


def _asked(fetch: Callable[..., Awaitable[bytes]]) -> Callable[..., Awaitable[bytes]]:
    """Return a request to an auth server that notes its address."""

    async def asked(address: str, *args: Any) -> bytes:
        ASKED.get().append(address)
        return await fetch(address, *args)

    return asked


class Grants:
    """The grants and requests of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._given: list[_Grant] = []
        self._requests: dict[Session, _Request] = {}  # under way
        verbs = {step.verb for step in world.plan.steps}
        self._may_dial_long = bool(verbs & {"partition", "unanswered"})  # a dial may end without a connection
        self._latency_max = LATE_MAX if verbs & {"partition", "slow disk"} else ANSWER_MAX

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Know all requests of brokers that are under way, and have them come from the host of the broker."""
        with (
            mock.patch.object(ExternalServices, "_authorize", self._noted(ExternalServices._authorize)),
            mock.patch.object(auth, "query_auth_servers", self._checked(auth.query_auth_servers)),
            mock.patch.object(auth, "_fetch", _asked(auth._fetch)),
        ):
            yield

    def _checked(self, query: Callable[..., Awaitable[AuthState]]) -> Callable[..., Awaitable[AuthState]]:
        """Return a query that fails only after all servers were asked."""

        async def checked(options: BrokerOptions, **keywords: Any) -> AuthState:
            ASKED.set([])
            try:
                return await query(options, **keywords)
            except RequestFailed:
                if (asked := sorted(ASKED.get())) != sorted(options.auth_http_addresses):
                    broken = Broken(11, f"of the auth servers {options.auth_http_addresses}, {asked} were asked")
                    raise self._world.failed(broken) from None
                raise

        return checked

    def _noted(self, authorize: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def noted(services: Any, session: Session, secret: bytes) -> None:
            node = services._nsqd.options.broadcast_address
            HOST.set(node)
            before = session.authorization and session.authorization.state
            self._begin(session, node, secret)
            try:
                await authorize(services, session, secret)
            finally:
                del self._requests[session]
            if before and session.authorization and session.authorization.state:
                self._world.reached.add("grant renewed")

        return noted

    def _begin(self, session: Session, node: str, secret: bytes) -> None:
        if session in self._requests:
            raise self._world.failed(Broken(22, f"{node} sends two requests at once for {session.remote_address}"))
        options, now = self._world.plan.nodes[node], self._world.loop.time()
        seconds = options.get("http_client_request_timeout_ns", 5 * 10**9) / 1e9 or math.inf
        end = now + len(options["auth"]) * (seconds + self._latency_max)
        request = _Request(node, secret.decode("utf-8", "replace"), end, now)
        for each in self._requests.values():
            if (each.node, each.secret) == (request.node, request.secret):
                each.since = request.since = math.inf
        self._requests[session] = request

    def grant(self, node: str, secret: str, ttl: int, permissions: list[str]) -> None:
        """Record a grant that is sent to a broker."""
        now = self._world.loop.time()
        self._given.append(_Grant(node, secret, now, now + ttl + self._latency_max, tuple(permissions)))

    # ---- checks --------------------------------------------------------------------------------------------------

    def check_waiting(self) -> None:
        """Check, in an idle moment, that each session that waits for a grant has a request that has no answer yet.

        Raises:
            Broken: one waits for nothing.
        """
        for node in self._world.nodes.values():
            for session in node.nsqd.broker.sessions if node.nsqd is not None and node.nsqd.is_running else ():
                authorization = session.authorization
                if authorization is None or not authorization.is_requested:
                    continue
                what = f"{session.remote_address} waits for a grant in {node.name}"
                if session not in self._requests:
                    raise Broken(11, f"{what}, which has sent no request, or has its answer")
                request, now = self._requests[session], self._world.loop.time()
                answered = self._answered_at(request)
                conclude(11, now <= answered + self._latency_max, f"{what}, which was sent at {answered:.3f}")
                conclude(11, now <= request.end, f"{what} for longer than its requests may last")

    def _answered_at(self, request: _Request) -> float:
        """Return when the grant for a request was sent; infinite if that is not known."""
        found = (
            each.at
            for each in self._given
            if (each.node, each.secret) == (request.node, request.secret) and each.at >= request.since
        )
        return next(found, math.inf)

    def check_publish(self, publish: Publish, secret: str) -> None:
        """Check that a broker may have accepted a publish while the client had a grant for it.

        Raises:
            Broken: there was none.
        """
        has_grant = any(
            each.secret == secret and "publish" in each.permissions
            for each in self._given
            if each.at <= publish.ended and each.end >= publish.begun and each.node in publish.nodes
        )
        is_needed = all("auth" in self._world.plan.nodes[node] for node in publish.nodes)
        conclude(22, has_grant or not is_needed, f"{publish.names} were accepted without a grant")

    def watch_error(self, address: str, error: Exception | None) -> None:
        """Check an error that ended a connection: it shows no secret, and is not a wrong one during AUTH."""
        world, (node, _, port) = self._world, address.partition(":")
        try:
            check_texts(error)
            is_strange = isinstance(error, ProtocolError) and int(port) == NSQD_PORT
            conclude(11, not is_strange, f"{HOST.get()} does not understand {node}: {error}")
            if isinstance(error, ConnectTimeout) and int(port) == NSQD_PORT:
                self._check_given_up(HOST.get(), node)
        except Broken as broken:
            raise world.failed(broken) from None
        if isinstance(error, REFUSALS):
            world.reached.add("auth refused")

    def _check_given_up(self, player: str, node: str) -> None:
        """Check that a handshake that was given up has lasted as long as it may, if an answer to AUTH was due."""
        streams = [each.client for each in self._world.network.between(player, node)]
        stream = max(streams, key=lambda each: each.dialled_at, default=None)
        if stream is None or all(each.remote_address != stream.local_address for each in self._requests):
            return
        self._world.reached.add("handshake given up")
        lasted = self._world.loop.time() - stream.dialled_at
        limit = 1 + max(1, self._world.plan.players[player].get("read_timeout", 60.0))
        is_right = lasted >= limit - ROUNDING or self._may_dial_long
        conclude(28, is_right, f"{player} has given AUTH to {node} up after {lasted:.3f} seconds")
