"""The HTTP routes of nsqlookupd: lookups, the lists of topics, channels and nodes, tombstones.

A request is checked in nsqlookupd's order and refused with its words (nsqlookupd/http.go); an answer has its keys, in
its order. ``ROUTES`` is the table of routes, each a function of the API and the request. The server imports this module
when the first connection comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from nsqkit.http.access_log import logged
from nsqkit.http.debug import pprof_routes
from nsqkit.http.messages import PROGRAM, HTTPError, Query, Request, Response
from nsqkit.http.router import Router
from nsqkit.http.server import serve_connection
from nsqkit.wire.identify import BROKER_VERSION
from nsqkit.wire.names import is_valid_name

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.clock import Clock
    from nsqkit.lookupd.registry import Peer, Registry

logger = logging.getLogger("nsqkit.lookupd")

Route: TypeAlias = Callable[["HTTPApi", Request], Response]

BODY_LENGTH_MAX: Final = 1 << 20
"""Bytes of a body that are discarded to get to the next request; no route reads one."""

_GO_ZERO_TIME_NS: Final = -6795364578871345152
"""Go's zero time in nanoseconds: the time of a tombstone that was never set, in ``/debug``."""


def ping(api: HTTPApi, request: Request) -> Response:
    """Answer OK."""
    return Response.plain("OK")


def info(api: HTTPApi, request: Request) -> Response:
    """Return the version."""
    return Response.v1({"version": BROKER_VERSION}, PROGRAM)


def debug(api: HTTPApi, request: Request) -> Response:
    """Return every registration that has a peer, with its peers."""
    return Response.v1_pieces(
        (registration.key, [_debug_entry(peer, registration.category, registration.topic) for peer in peers])
        for registration, peers in api.registry.registrations()
        if peers
    )


def _debug_entry(peer: Peer, category: str, topic: bytes) -> dict[str, Any]:
    tombstoned_at_ns = peer.topics.get(topic) if category == "topic" else None
    return {
        "broadcast_address": peer.node.broadcast_address,
        "hostname": peer.node.hostname,
        "http_port": peer.node.http_port,
        "id": peer.remote_address,
        "last_update": peer.last_update_ns,
        "tcp_port": peer.node.tcp_port,
        "tombstoned": tombstoned_at_ns is not None,
        "tombstoned_at": _GO_ZERO_TIME_NS if tombstoned_at_ns is None else tombstoned_at_ns,
        "topology_region": peer.node.topology_region,
        "topology_zone": peer.node.topology_zone,
        "version": peer.node.version,
    }


def lookup(api: HTTPApi, request: Request) -> Response:
    """Return the channels of a topic, and the nsqds from which consumers get it."""
    topic = Query(request).required("topic")
    registry = api.registry
    if not registry.has_topic(topic):
        raise HTTPError(404, "TOPIC_NOT_FOUND")
    producers = registry.producers(topic, api.clock.now_ns())
    return Response.v1(
        {
            "channels": _names(registry.channels(topic)),
            "producers": [_describe(peer) | _topology(peer) for peer in producers],
        }
    )


def topics(api: HTTPApi, request: Request) -> Response:
    """Return all topics."""
    return Response.v1({"topics": _names(api.registry.topics())})


def channels(api: HTTPApi, request: Request) -> Response:
    """Return the channels of a topic."""
    topic = Query(request).required("topic")
    return Response.v1({"channels": _names(api.registry.channels(topic))})


def nodes(api: HTTPApi, request: Request) -> Response:
    """Return all active nsqds with their topics, and for each topic whether the nsqd has a tombstone there."""
    now_ns = api.clock.now_ns()
    registry = api.registry
    producers = [
        {
            **_describe(peer),
            "tombstones": [registry.is_tombstoned(peer, topic, now_ns) for topic in peer.topics],
            "topics": _names(peer.topics),
            **_topology(peer),
        }
        for peer in registry.active_peers(now_ns)
    ]
    return Response.v1({"producers": producers})


def _describe(peer: Peer) -> dict[str, Any]:
    node = peer.node
    return {
        "remote_address": peer.remote_address,
        "hostname": node.hostname,
        "broadcast_address": node.broadcast_address,
        "tcp_port": node.tcp_port,
        "http_port": node.http_port,
        "version": node.version,
    }


def _topology(peer: Peer) -> dict[str, Any]:
    return {"topology_zone": peer.node.topology_zone, "topology_region": peer.node.topology_region}


def _names(names: Iterable[bytes]) -> list[str]:
    return [name.decode() for name in names]


def create_topic(api: HTTPApi, request: Request) -> Response:
    """Create a topic before an nsqd has it."""
    topic = Query(request).required("topic")
    if not is_valid_name(topic):
        raise HTTPError(400, "INVALID_ARG_TOPIC")
    logger.info("DB: adding topic(%s)", topic.decode())
    api.registry.create_topic(topic)
    return Response.v1()


def delete_topic(api: HTTPApi, request: Request) -> Response:
    """Remove a topic and its channels here; nsqds that have it are not notified."""
    topic = Query(request).required("topic")
    for registration in api.registry.delete_topic(topic):
        logger.info("DB: removing %s", registration)
    return Response.v1()


def tombstone_topic(api: HTTPApi, request: Request) -> Response:
    """Hide an nsqd from the consumers of a topic for a while."""
    query = Query(request)
    topic, node = query.required("topic"), query.required("node").decode("utf-8", "surrogateescape")
    logger.info("DB: setting tombstone for producer@%s of topic(%s)", node, query.get("topic"))
    api.registry.tombstone(topic, node, api.clock.now_ns())
    return Response.v1()


def create_channel(api: HTTPApi, request: Request) -> Response:
    """Create a channel and its topic before an nsqd has them."""
    topic, channel = _topic_and_channel(request)
    logger.info("DB: adding channel(%s) in topic(%s)", channel.decode(), topic.decode())
    api.registry.create_channel(topic, channel)
    api.registry.create_topic(topic)
    return Response.v1()


def delete_channel(api: HTTPApi, request: Request) -> Response:
    """Remove a channel here; nsqds that have it are not notified."""
    topic, channel = _topic_and_channel(request)
    if not api.registry.delete_channel(topic, channel):
        raise HTTPError(404, "CHANNEL_NOT_FOUND")
    logger.info("DB: removing channel(%s) from topic(%s)", channel.decode(), topic.decode())
    return Response.v1()


def _topic_and_channel(request: Request) -> tuple[bytes, bytes]:
    query = Query(request)
    names = []
    for key in ("topic", "channel"):
        name = query.required(key)
        if not is_valid_name(name):
            raise HTTPError(400, f"INVALID_ARG_{key.upper()}")
        names.append(name)
    topic, channel = names
    return topic, channel


ROUTES: Final[tuple[tuple[str, str, Route], ...]] = (
    ("GET", "/ping", ping),
    ("GET", "/info", info),
    ("GET", "/debug", debug),
    ("GET", "/lookup", lookup),
    ("GET", "/topics", topics),
    ("GET", "/channels", channels),
    ("GET", "/nodes", nodes),
    ("POST", "/topic/create", create_topic),
    ("POST", "/topic/delete", delete_topic),
    ("POST", "/topic/tombstone", tombstone_topic),
    ("POST", "/channel/create", create_channel),
    ("POST", "/channel/delete", delete_channel),
)


class HTTPApi:
    """Serves the HTTP connections of one nsqlookupd.

    Attributes:
        handle: answers a request, and logs it.
    """

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self.registry = registry
        self.clock = clock
        routes = [(method, path, partial(route, self)) for method, path, route in ROUTES]
        pprof = pprof_routes("/debug/pprof", clock)
        # As in nsqlookupd, these requests are not logged.
        unlogged = {path for _, path, _ in pprof}
        self.handle = logged(Router([*routes, *pprof]).handle, logger=logger, clock=clock, unlogged=unlogged)

    async def serve(self, stream: ByteStream, remote_address: str) -> None:
        """Answer the requests of one connection until it ends, then close the stream."""
        await serve_connection(
            stream, self.handle, clock=self.clock, body_max=BODY_LENGTH_MAX, remote_address=remote_address
        )
