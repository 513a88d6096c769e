"""The HTTP routes of nsqlookupd: who has a topic, which topics, channels and nodes there are, tombstones.

The rule it guards: a request is looked at in nsqlookupd's order and refused with its words (nsqlookupd, http.go), and
an answer has its keys, in its order.

How to read it: ``ROUTES`` is the table; each route is a function of the nsqlookupd and the request. ``serve_http`` at
the end is what the server calls for each connection. Nothing here is imported before the first of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from nsqkit.http.access_log import logged
from nsqkit.http.debug import pprof_routes
from nsqkit.http.messages import PROGRAM, HTTPError, Request, Response
from nsqkit.http.query import Query
from nsqkit.http.router import Router
from nsqkit.http.server import serve_connection
from nsqkit.wire.identify import BROKER_VERSION
from nsqkit.wire.names import is_valid_name

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.lookupd.registry import Peer
    from nsqkit.lookupd.server import Nsqlookupd

__all__ = ["ROUTES", "serve_http"]

logger = logging.getLogger("nsqkit.lookupd")

Route: TypeAlias = Callable[["Nsqlookupd", Request], Response]

PPROF_ROUTES: Final = pprof_routes("/debug/pprof")
"""Those that know nothing of the nsqlookupd."""

NOT_LOGGED: Final = frozenset(path for _, path, _ in PPROF_ROUTES)
"""Paths of which there is no line in the log for each request, as in nsqlookupd."""

BODY_LENGTH_MAX: Final = 1 << 20
"""Bytes of a body that are thrown away to get to the next request; no route has a use for one."""

_GO_ZERO_TIME_NS: Final = -6795364578871345152
"""What Go makes of the year 1 in nanoseconds: the time of a tombstone that was never set, in ``/debug``."""


# ---- about the nsqlookupd -------------------------------------------------------------------------------------


def ping(lookupd: Nsqlookupd, request: Request) -> Response:
    """Say that it is well."""
    return Response.plain("OK")


def info(lookupd: Nsqlookupd, request: Request) -> Response:
    """Tell its version."""
    return Response.v1({"version": BROKER_VERSION}, PROGRAM)


def debug(lookupd: Nsqlookupd, request: Request) -> Response:
    """Tell every registration that somebody has, and who."""
    return Response.v1_pieces(
        (registration.key, [_debug_entry(peer, registration.category, registration.topic) for peer in peers])
        for registration, peers in lookupd.registry.registrations()
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


# ---- who has what ---------------------------------------------------------------------------------------------


def lookup(lookupd: Nsqlookupd, request: Request) -> Response:
    """Tell the channels of a topic, and the nsqds from which consumers get it."""
    topic = Query(request).required("topic")
    registry = lookupd.registry
    if not registry.knows_topic(topic):
        raise HTTPError(404, "TOPIC_NOT_FOUND")
    producers = registry.producers(topic, lookupd.clock.now_ns())
    return Response.v1(
        {
            "channels": _names(registry.channels(topic)),
            "producers": [_describe(peer) | _topology(peer) for peer in producers],
        }
    )


def topics(lookupd: Nsqlookupd, request: Request) -> Response:
    """Tell all topics."""
    return Response.v1({"topics": _names(lookupd.registry.topics())})


def channels(lookupd: Nsqlookupd, request: Request) -> Response:
    """Tell the channels of a topic."""
    topic = Query(request).required("topic")
    return Response.v1({"channels": _names(lookupd.registry.channels(topic))})


def nodes(lookupd: Nsqlookupd, request: Request) -> Response:
    """Tell all nsqds with their topics, and of each topic whether a tombstone hides the nsqd there."""
    now_ns = lookupd.clock.now_ns()
    registry = lookupd.registry
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


# ---- changes --------------------------------------------------------------------------------------------------


def create_topic(lookupd: Nsqlookupd, request: Request) -> Response:
    """Make a topic known before an nsqd has it."""
    topic = Query(request).required("topic")
    if not is_valid_name(topic):
        raise HTTPError(400, "INVALID_ARG_TOPIC")
    logger.info("DB: adding topic(%s)", topic.decode())
    lookupd.registry.create_topic(topic)
    return Response.v1()


def delete_topic(lookupd: Nsqlookupd, request: Request) -> Response:
    """Forget a topic and its channels; nsqds that still have it will not be told."""
    topic = Query(request).required("topic")
    for registration in lookupd.registry.delete_topic(topic):
        logger.info("DB: removing %s", registration)
    return Response.v1()


def tombstone_topic(lookupd: Nsqlookupd, request: Request) -> Response:
    """Hide an nsqd from the consumers of a topic for a while."""
    query = Query(request)
    topic, node = query.required("topic"), query.required("node").decode("utf-8", "surrogateescape")
    logger.info("DB: setting tombstone for producer@%s of topic(%s)", node, query.get("topic"))
    lookupd.registry.tombstone(topic, node, lookupd.clock.now_ns())
    return Response.v1()


def create_channel(lookupd: Nsqlookupd, request: Request) -> Response:
    """Make a channel and its topic known before an nsqd has them."""
    topic, channel = _topic_and_channel(request)
    logger.info("DB: adding channel(%s) in topic(%s)", channel.decode(), topic.decode())
    lookupd.registry.create_channel(topic, channel)
    lookupd.registry.create_topic(topic)
    return Response.v1()


def delete_channel(lookupd: Nsqlookupd, request: Request) -> Response:
    """Forget a channel; nsqds that still have it will not be told."""
    topic, channel = _topic_and_channel(request)
    if not lookupd.registry.delete_channel(topic, channel):
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


# ---- all of them ----------------------------------------------------------------------------------------------

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


async def serve_http(lookupd: Nsqlookupd, stream: ByteStream, remote_address: str) -> None:
    """Answer the requests of one connection until it ends; the stream is closed then.

    Args:
        lookupd: the nsqlookupd that they are for.
        stream: where the client is.
        remote_address: ``host:port`` of the client, for the log.
    """
    routes = [(method, path, partial(route, lookupd)) for method, path, route in ROUTES]
    handle = logged(
        Router([*routes, *PPROF_ROUTES]).handle,
        logger=logger,
        now_ns=lookupd.clock.now_ns,
        remote_address=remote_address,
        unlogged=NOT_LOGGED,
    )
    await serve_connection(stream, handle, body_max=BODY_LENGTH_MAX)
