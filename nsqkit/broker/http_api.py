"""The HTTP routes of nsqd: publishing, topics and channels, ``/stats``, ``/config``.

A request is checked in nsqd's order and refused with nsqd's words (nsqd/http.go), so that of two mistakes the same one
is reported. A route changes the engine and then calls ``process_changes`` once, which delivers messages and wakes
writers. ``ROUTES`` is the table of routes, each a function of the broker and the request; ``HTTPApi`` serves
connections. The server imports this module when the first connection comes.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio.lowlevel
import attrs

from nsqkit.broker.core.report.stats import collect, to_document, to_text
from nsqkit.broker.core.topics.batch import PART_COUNT_MAX, Batch
from nsqkit.broker.memory_stats import read_memory_stats
from nsqkit.errors import OptionError
from nsqkit.http.access_log import logged
from nsqkit.http.debug import MEMORY_ROUTES, pprof_routes
from nsqkit.http.messages import BOOLEANS, PROGRAM, HTTPError, Query, Request, Response, parse_integer
from nsqkit.http.router import Router
from nsqkit.http.server import serve_connection
from nsqkit.program.version import version_line
from nsqkit.transport.address import port_of
from nsqkit.wire.bodies import batch_count_max, parse_int32
from nsqkit.wire.commands import milliseconds_ns
from nsqkit.wire.identify import BROKER_VERSION
from nsqkit.wire.names import is_valid_name

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.broker.core.topics.topic import Topic
    from nsqkit.broker.running import RunningBroker

logger = logging.getLogger("nsqkit.broker")

Route: TypeAlias = Callable[["RunningBroker", Request], "Response | Awaitable[Response]"]

SPLIT_SIZE: Final = 64 * 1024
"""Bytes of a body that are split into lines at once."""


# ---- about the broker -----------------------------------------------------------------------------------------


def ping(nsqd: RunningBroker, request: Request) -> Response:
    """Return the health of the broker."""
    health = nsqd.broker.health
    return Response.plain(health, status=200 if health == "OK" else 500)


def info(nsqd: RunningBroker, request: Request) -> Response:
    """Return the identity and some limits of the broker."""
    options = nsqd.options
    return Response.v1(
        {
            "version": BROKER_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": platform.node(),
            "http_port": port_of(nsqd.http_address),
            "tcp_port": port_of(nsqd.tcp_address),
            "start_time": nsqd.start_time_ns // 10**9,
            "max_heartbeat_interval": options.max_heartbeat_interval_ns,
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.max_output_buffer_timeout_ns,
            "max_deflate_level": options.max_deflate_level,
            "topology_zone": options.topology_zone,
            "topology_region": options.topology_region,
        },
        PROGRAM,
    )


def stats(nsqd: RunningBroker, request: Request) -> Response:
    """Return the state of topics, channels and clients, in JSON or as text."""
    query = Query(request)
    seen = collect(
        nsqd.broker,
        nsqd.clock.now_ns(),
        topic=query.name("topic"),
        channel=query.name("channel"),
        include_clients=BOOLEANS.get(query.get("include_clients"), True),
    )
    memory = read_memory_stats() if BOOLEANS.get(query.get("include_mem"), True) else None
    start_time_ns, health = nsqd.start_time_ns, nsqd.broker.health
    if query.get("format") == "json":
        return Response.v1(to_document(seen, health=health, start_time_ns=start_time_ns, memory=memory))
    started = datetime.fromtimestamp(start_time_ns // 10**9).astimezone()
    return Response.v1(
        to_text(
            seen,
            version_line=version_line("nsqd"),
            health=health,
            start_time=started.isoformat().replace("+00:00", "Z"),
            start_time_ns=start_time_ns,
            now_ns=nsqd.clock.now_ns(),
            memory=memory,
        )
    )


# ---- publishing -----------------------------------------------------------------------------------------------


async def publish(nsqd: RunningBroker, request: Request) -> Response:
    """Publish the body as one message."""
    size_max = nsqd.options.max_msg_size
    if (request.content_length or 0) > size_max:
        raise HTTPError(413, "MSG_TOO_BIG")
    body = await request.read(size_max)
    if len(body) > size_max:
        raise HTTPError(413, "MSG_TOO_BIG")
    if not body:
        raise HTTPError(400, "MSG_EMPTY")
    query = Query(request)
    topic_name = _create_topic(nsqd, query).name
    delay_ns = _delay_ns(query.get("defer"), nsqd.options.max_req_timeout_ns) if "defer" in query else 0
    return await _put(nsqd, topic_name, (body,), delay_ns)


def _delay_ns(text: str, delay_ns_max: int) -> int:
    try:
        delay_ns = milliseconds_ns(parse_integer(text))
    except ValueError:
        delay_ns = -1
    if not 0 <= delay_ns <= delay_ns_max:
        raise HTTPError(400, "INVALID_DEFER")
    return delay_ns


async def multi_publish(nsqd: RunningBroker, request: Request) -> Response:
    """Publish each line of the body, or each message of a body in the format of MPUB."""
    size_max = nsqd.options.max_body_size
    if (request.content_length or 0) > size_max:
        raise HTTPError(413, "BODY_TOO_BIG")
    query = Query(request)
    topic_name = _create_topic(nsqd, query).name
    binary = "binary" in query and BOOLEANS.get(query.get("binary"), True)
    body = await request.read(size_max)
    bodies = await (_split_batch if binary else _split_lines)(nsqd, body)
    return await _put(nsqd, topic_name, bodies)


async def _put(nsqd: RunningBroker, topic_name: bytes, bodies: Sequence[bytes], delay_ns: int = 0) -> Response:
    if not nsqd.is_running:
        raise HTTPError(503, "EXITING")
    group_commit = nsqd.broker.group_commit
    first_ticket = 0 if group_commit is None else group_commit.ticket
    try:
        if len(bodies) > PART_COUNT_MAX:
            await _put_in_parts(nsqd, Batch(nsqd.broker.topics, topic_name, bodies))
        else:
            topic = nsqd.broker.topics.get_or_create(topic_name)  # it may have been deleted while the body came
            topic.put(bodies, nsqd.clock.now_ns(), delay_ns=delay_ns)
    except OSError as error:
        raise HTTPError(503, "EXITING") from error  # nsqd answers every failed publish so
    finally:
        nsqd.process_changes()
    if not await nsqd.committed(first_ticket):
        raise HTTPError(503, "EXITING")
    return Response.v1("OK")


async def _put_in_parts(nsqd: RunningBroker, batch: Batch) -> None:
    try:
        while batch.put_part(nsqd.clock.now_ns()):
            nsqd.process_changes()
            await anyio.lowlevel.checkpoint()
    except OSError:
        raise
    except BaseException:  # the broker stops
        batch.put_rest(nsqd.clock.now_ns())
        raise


async def _split_lines(nsqd: RunningBroker, body: bytes) -> list[bytes]:
    """Return the lines that are not empty."""
    msg_size_max, body_size_max = nsqd.options.max_msg_size, nsqd.options.max_body_size
    too_big = len(body) > body_size_max
    if too_big:
        body = body[:-1].rpartition(b"\n")[0]  # nsqd has checked the lines before the last one by then
    lines: list[bytes] = []
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + SPLIT_SIZE)
        part = body[start : end if end >= 0 else len(body)]
        start += len(part) + 1
        lines += filter(None, part.split(b"\n"))
        await anyio.lowlevel.checkpoint()
    if max(map(len, lines), default=0) > msg_size_max:
        raise HTTPError(413, "MSG_TOO_BIG")
    if too_big:
        raise HTTPError(413, "BODY_TOO_BIG")
    return lines


async def _split_batch(nsqd: RunningBroker, body: bytes) -> list[bytes]:
    """Return the messages; bytes after the last one are ignored, as in nsqd.

    Unlike nsqd, this applies ``max_body_size`` to chunked bodies too.
    """
    msg_size_max, body_size_max = nsqd.options.max_msg_size, nsqd.options.max_body_size
    if len(body) > body_size_max:
        raise HTTPError(413, "BODY_TOO_BIG")
    count = parse_int32(body[:4]) if len(body) >= 4 else 0
    if not 0 < count <= batch_count_max(body_size_max):
        raise HTTPError(413, "BAD_BODY")
    bodies = []
    end = 4
    for _ in range(count):
        start = end + 4
        size = parse_int32(body[end:start]) if start <= len(body) else 0
        end = start + size
        if not 0 < size <= msg_size_max or end > len(body):
            raise HTTPError(413, "BAD_MESSAGE")
        bodies.append(body[start:end])
        if len(bodies) % PART_COUNT_MAX == 0:
            await anyio.lowlevel.checkpoint()
    return bodies


# ---- topics and channels --------------------------------------------------------------------------------------


def create_topic(nsqd: RunningBroker, request: Request) -> Response:
    """Create a topic unless it exists."""
    _create_topic(nsqd, Query(request))
    return _process(nsqd)


def empty_topic(nsqd: RunningBroker, request: Request) -> Response:
    """Delete the messages that are queued in a topic."""
    query = Query(request)
    if not is_valid_name(query.required("topic")):
        raise HTTPError(400, "INVALID_TOPIC")
    _topic(nsqd, query).empty()
    return _process(nsqd)


def create_channel(nsqd: RunningBroker, request: Request) -> Response:
    """Create a channel of an existing topic unless it exists."""
    topic, name = _topic_and_channel_name(nsqd, request)
    topic.channel(name, nsqd.clock.now_ns())
    return _process(nsqd)


def _change_topic(change: Callable[[RunningBroker, Topic], None], *, save: bool = False) -> Route:
    """Return a route that changes an existing topic."""

    def route(nsqd: RunningBroker, request: Request) -> Response | Awaitable[Response]:
        change(nsqd, _topic(nsqd, Query(request)))
        return _save(nsqd) if save else _process(nsqd)

    return route


def _change_channel(change: Callable[[RunningBroker, Topic, Channel], None], *, save: bool = False) -> Route:
    """Return a route that changes an existing channel."""

    def route(nsqd: RunningBroker, request: Request) -> Response | Awaitable[Response]:
        topic, name = _topic_and_channel_name(nsqd, request)
        channel = topic.channels.get(name)
        if channel is None:
            raise HTTPError(404, "CHANNEL_NOT_FOUND")
        change(nsqd, topic, channel)
        return _save(nsqd) if save else _process(nsqd)

    return route


def _process(nsqd: RunningBroker) -> Response:
    nsqd.process_changes()
    return Response.v1()


async def _save(nsqd: RunningBroker) -> Response:
    """Answer when the change is written to disk, if there is a data path."""
    response = _process(nsqd)
    await nsqd.save()
    return response


def _create_topic(nsqd: RunningBroker, query: Query) -> Topic:
    """Return the topic that the query names, created if it is new."""
    name = query.required("topic")
    if not is_valid_name(name):
        raise HTTPError(400, "INVALID_TOPIC")
    return nsqd.broker.topics.get_or_create(name)


def _topic(nsqd: RunningBroker, query: Query) -> Topic:
    """Return the topic that the query names; as in nsqd, an invalid name is just not found."""
    topic = nsqd.broker.topics.get(query.required("topic"))
    if topic is None:
        raise HTTPError(404, "TOPIC_NOT_FOUND")
    return topic


def _topic_and_channel_name(nsqd: RunningBroker, request: Request) -> tuple[Topic, bytes]:
    query = Query(request)
    if not is_valid_name(query.required("topic")):
        raise HTTPError(400, "INVALID_ARG_TOPIC")
    name = query.required("channel")
    if not is_valid_name(name):
        raise HTTPError(400, "INVALID_ARG_CHANNEL")
    return _topic(nsqd, query), name


# ---- options --------------------------------------------------------------------------------------------------


def get_option(nsqd: RunningBroker, request: Request) -> Response:
    """Return the value of an option."""
    options = attrs.evolve(
        nsqd.options,
        broadcast_tcp_port=nsqd.options.broadcast_tcp_port or max(port_of(nsqd.tcp_address), 0),
        broadcast_http_port=nsqd.options.broadcast_http_port or max(port_of(nsqd.http_address), 0),
        statsd_prefix=nsqd.statsd_prefix,
    )
    try:
        return Response.v1(options.config_value(request.params["opt"]))
    except OptionError as error:
        raise HTTPError(400, "INVALID_OPTION") from error


async def put_option(nsqd: RunningBroker, request: Request) -> Response:
    """Change an option that can be changed while the broker runs; return its value."""
    size_max = nsqd.options.max_msg_size
    body = await request.read(size_max)
    if not 0 < len(body) <= size_max:
        raise HTTPError(413, "INVALID_VALUE")
    try:
        match request.params["opt"]:
            case "nsqlookupd_tcp_addresses":
                addresses = json.loads(body)
                addresses = () if addresses is None else addresses
                nsqd.options = attrs.evolve(nsqd.options, lookupd_tcp_addresses=addresses)
            case "log_level":
                nsqd.options = attrs.evolve(nsqd.options, log_level=body.decode().lower())
                nsqd.broker.log_commands(nsqd.options.log_level == "debug")
            case _:
                raise HTTPError(400, "INVALID_OPTION")
    except (ValueError, RecursionError) as error:
        raise HTTPError(400, "INVALID_VALUE") from error
    nsqd.process_changes()
    return get_option(nsqd, request)


# ---- serving --------------------------------------------------------------------------------------------------

ROUTES: Final[tuple[tuple[str, str, Route], ...]] = (
    ("GET", "/ping", ping),
    ("GET", "/info", info),
    ("GET", "/stats", stats),
    ("POST", "/pub", publish),
    ("POST", "/mpub", multi_publish),
    ("POST", "/topic/create", create_topic),
    ("POST", "/topic/delete", _change_topic(lambda nsqd, topic: nsqd.broker.delete_topic(topic.name))),
    ("POST", "/topic/empty", empty_topic),
    ("POST", "/topic/pause", _change_topic(lambda nsqd, topic: topic.pause(), save=True)),
    (
        "POST",
        "/topic/unpause",
        _change_topic(lambda nsqd, topic: topic.unpause(nsqd.clock.now_ns()), save=True),
    ),
    ("POST", "/channel/create", create_channel),
    (
        "POST",
        "/channel/delete",
        _change_channel(lambda nsqd, topic, channel: nsqd.broker.delete_channel(topic.name, channel.name)),
    ),
    ("POST", "/channel/empty", _change_channel(lambda nsqd, topic, channel: channel.empty())),
    ("POST", "/channel/pause", _change_channel(lambda nsqd, topic, channel: channel.pause(), save=True)),
    ("POST", "/channel/unpause", _change_channel(lambda nsqd, topic, channel: channel.unpause(), save=True)),
    ("GET", "/config/:opt", get_option),
    ("PUT", "/config/:opt", put_option),
)


def refuse_without_tls(nsqd: RunningBroker, request: Request) -> Response:
    """Refuse any request with the port of HTTPS."""
    document = {"message": "TLS_REQUIRED", "https_port": port_of(nsqd.https_address)}
    refusal = Response.v1_error(403, "TLS_REQUIRED")
    return attrs.evolve(refusal, body=json.dumps(document).encode())  # with blanks, unlike all else


class HTTPApi:
    """Serves the HTTP connections of one broker."""

    def __init__(self, nsqd: RunningBroker) -> None:
        self._nsqd = nsqd
        routes = [(method, path, partial(route, nsqd)) for method, path, route in ROUTES]
        pprof = pprof_routes("/debug/pprof/", nsqd.clock)
        # As in nsqd, these requests are not logged.
        unlogged = {"/pub", "/mpub", *(path for _, path, _ in pprof)}
        router = Router([*routes, *pprof, *MEMORY_ROUTES])
        self._handle = logged(router.handle, logger=logger, clock=nsqd.clock, unlogged=unlogged)

    async def serve(self, stream: ByteStream, remote_address: str, *, secure: bool = False) -> None:
        """Answer the requests of one connection until it ends, then close the stream; ``secure`` is True for TLS."""
        nsqd, options = self._nsqd, self._nsqd.options
        is_refused = not secure and options.tls_demanded == "true"
        await serve_connection(
            stream,
            partial(refuse_without_tls, nsqd) if is_refused else self._handle,
            remote_address=remote_address,
            body_max=max(options.max_msg_size, options.max_body_size),
            clock=nsqd.clock,
        )
