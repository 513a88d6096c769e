"""IDENTIFY: the request of a client, the broker's grant, and the JSON of both.

    IdentifyRequest → decode_request → negotiate → Grant

Values are compared with the broker's limits in nsqd's order, so that the error names the same value. Numbers have the
units of the wire (milliseconds, bytes) in the request, and times are nanoseconds in the grant.
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from nsqkit.errors import BadBody, IdentifyFailed, ProtocolError
from nsqkit.wire.documents import INT32, check_type, field_types_of, read_object

BROKER_VERSION: Final = "1.3.0"
"""The version of nsqd that the broker behaves as; tools depend on it."""

NS_PER_MS: Final = 1_000_000

_DEFLATE_LEVEL_DEFAULT = 6
_HEARTBEAT_INTERVAL_MIN_MS = 1000
_MSG_TIMEOUT_MIN_MS = 1000
_OUTPUT_BUFFER_SIZE_MIN = 64
_SAMPLE_RATE_MAX = 99


@attrs.frozen(kw_only=True)
class IdentifyRequest:
    """The body of IDENTIFY; 0 and the empty text stand for the broker's default."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    msg_timeout: int = 0
    topology_region: str = ""
    topology_zone: str = ""


_FIELD_TYPES: Final = field_types_of(IdentifyRequest, sample_rate=INT32)


@attrs.frozen(kw_only=True)
class IdentifyLimits:
    """The limits of a broker, from its options."""

    max_rdy_count: int
    msg_timeout_ns: int
    max_msg_timeout_ns: int
    heartbeat_interval_ns: int
    max_heartbeat_interval_ns: int
    output_buffer_size: int
    max_output_buffer_size: int
    output_buffer_timeout_ns: int
    min_output_buffer_timeout_ns: int
    max_output_buffer_timeout_ns: int
    deflate: bool
    max_deflate_level: int
    snappy: bool
    snappy_available: bool
    tls: bool
    auth_required: bool
    topology_region: str
    topology_zone: str


@attrs.frozen(kw_only=True)
class Grant:
    """The settings of one connection, as the broker granted them. A heartbeat interval of 0 is for no heartbeats."""

    heartbeat_interval_ns: int
    msg_timeout_ns: int
    output_buffer_size: int
    output_buffer_timeout_ns: int
    sample_rate: int = 0
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = _DEFLATE_LEVEL_DEFAULT
    snappy: bool = False


def encode_request(request: IdentifyRequest) -> bytes:
    """Return the JSON document of IDENTIFY, with the fields that differ from the defaults."""
    document = attrs.asdict(request, filter=lambda field, value: value != field.default)
    return json.dumps(document).encode()


def decode_request(body: bytes) -> IdentifyRequest:
    """Return the request in a JSON object; raise BadBody if it is none, or a value has another type."""
    try:
        return IdentifyRequest(**read_object(body, _FIELD_TYPES))
    except ValueError as error:
        raise BadBody("IDENTIFY failed to decode JSON body") from error


def negotiate(request: IdentifyRequest, limits: IdentifyLimits, current: Grant | None = None) -> Grant:
    """Return the part of ``request`` that ``limits`` allow.

    A value of 0 leaves a setting as it is. Without ``feature_negotiation`` TLS and compression are ignored, as in nsqd.

    Args:
        request: of the client.
        limits: of the broker.
        current: the settings before; None for the defaults in ``limits``.

    Raises:
        BadBody: a value is out of its range (nsqd, nsqd/client_v2.go, in the order of its setters).
        IdentifyFailed: both compressions were requested.
    """
    settings: IdentifyLimits | Grant = limits if current is None else current
    heartbeat_interval_ns = _in_range(
        request.heartbeat_interval,
        "heartbeat interval",
        _HEARTBEAT_INTERVAL_MIN_MS,
        limits.max_heartbeat_interval_ns // NS_PER_MS,
        default=settings.heartbeat_interval_ns,
        off=0,
    )
    output_buffer_timeout_ns = _in_range(
        request.output_buffer_timeout,
        "output buffer timeout",
        limits.min_output_buffer_timeout_ns // NS_PER_MS,
        limits.max_output_buffer_timeout_ns // NS_PER_MS,
        default=settings.output_buffer_timeout_ns,
        off=0,
    )
    output_buffer_size = _in_range(
        request.output_buffer_size,
        "output buffer size",
        _OUTPUT_BUFFER_SIZE_MIN,
        limits.max_output_buffer_size,
        default=settings.output_buffer_size,
        off=1,
        unit=1,
    )
    if request.output_buffer_size == -1:
        output_buffer_timeout_ns = 0
    if not 0 <= request.sample_rate <= _SAMPLE_RATE_MAX:
        raise BadBody(f"IDENTIFY sample rate ({request.sample_rate}) is invalid")
    msg_timeout_ns = _in_range(
        request.msg_timeout,
        "msg timeout",
        _MSG_TIMEOUT_MIN_MS,
        limits.max_msg_timeout_ns // NS_PER_MS,
        default=settings.msg_timeout_ns,
    )
    deflate = request.feature_negotiation and limits.deflate and request.deflate
    snappy = request.feature_negotiation and limits.snappy and request.snappy
    if deflate and snappy:
        raise IdentifyFailed("cannot enable both deflate and snappy compression")
    level = request.deflate_level if deflate and request.deflate_level > 0 else _DEFLATE_LEVEL_DEFAULT
    return Grant(
        heartbeat_interval_ns=heartbeat_interval_ns,
        msg_timeout_ns=msg_timeout_ns,
        output_buffer_size=output_buffer_size,
        output_buffer_timeout_ns=output_buffer_timeout_ns,
        sample_rate=request.sample_rate,
        tls_v1=request.feature_negotiation and limits.tls and request.tls_v1,
        deflate=deflate,
        deflate_level=min(level, limits.max_deflate_level),
        snappy=snappy and limits.snappy_available,
    )


def _in_range(
    value: int,
    what: str,
    least: int,
    most: int,
    *,
    default: int,
    off: int | None = None,
    unit: int = NS_PER_MS,
) -> int:
    if value == 0:
        return default
    if value == -1 and off is not None:
        return off
    if not least <= value <= most:
        raise BadBody(f"IDENTIFY {what} ({value}) is invalid")
    return value * unit


def encode_response(grant: Grant, limits: IdentifyLimits) -> bytes:
    """Return the JSON answer to an IDENTIFY with ``feature_negotiation``."""
    return json.dumps(
        {
            "max_rdy_count": limits.max_rdy_count,
            "version": BROKER_VERSION,
            "max_msg_timeout": limits.max_msg_timeout_ns // NS_PER_MS,
            "msg_timeout": grant.msg_timeout_ns // NS_PER_MS,
            "tls_v1": grant.tls_v1,
            "deflate": grant.deflate,
            "deflate_level": grant.deflate_level,
            "max_deflate_level": limits.max_deflate_level,
            "snappy": grant.snappy,
            "sample_rate": grant.sample_rate,
            "auth_required": limits.auth_required,
            "output_buffer_size": grant.output_buffer_size,
            "output_buffer_timeout": grant.output_buffer_timeout_ns // NS_PER_MS,
            "topology_region": limits.topology_region,
            "topology_zone": limits.topology_zone,
        },
        separators=(",", ":"),
    ).encode()


@attrs.frozen(kw_only=True)
class IdentifyAnswer:
    """The answer of a broker, in the units of the wire; older brokers omit fields.

    Attributes:
        max_rdy_count: the highest RDY on this connection.
        version: the broker's version.
        max_msg_timeout: milliseconds up to which TOUCH can extend the timeout of a message.
        msg_timeout: milliseconds after which an unanswered message is delivered again.
        tls_v1: the connection continues in TLS.
        deflate: the connection continues in deflate.
        deflate_level: the broker's level of compression.
        max_deflate_level: the highest level that it allows.
        snappy: the connection continues in snappy.
        sample_rate: percentage of the messages that are delivered; 0 for all.
        auth_required: AUTH must precede all other commands.
        output_buffer_size: bytes of messages that the broker collects before it sends.
        output_buffer_timeout: milliseconds after which it sends them anyway.
        topology_region: the region of the broker.
        topology_zone: the zone in that region.
    """

    max_rdy_count: int = 2500
    version: str = ""
    max_msg_timeout: int = 900_000
    msg_timeout: int = 60_000
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = _DEFLATE_LEVEL_DEFAULT
    max_deflate_level: int = _DEFLATE_LEVEL_DEFAULT
    snappy: bool = False
    sample_rate: int = 0
    auth_required: bool = False
    output_buffer_size: int = 16384
    output_buffer_timeout: int = 250
    topology_region: str = ""
    topology_zone: str = ""


# The numbers that an answer may have. A deflate level of -1 is the library's default.
_COUNTS: Final = {field.name: range(1 << 63) for field in attrs.fields(IdentifyAnswer) if type(field.default) is int}
_ANSWER_RANGES: Final = {"deflate_level": range(-1, 10), "sample_rate": range(_SAMPLE_RATE_MAX + 1)}
_ANSWER_TYPES: Final = field_types_of(IdentifyAnswer, **{**_COUNTS, **_ANSWER_RANGES})


def decode_response(payload: bytes) -> IdentifyAnswer:
    """Return the broker's answer to an IDENTIFY with ``feature_negotiation``.

    Raises:
        ProtocolError: the payload is not a JSON object, or a value is not allowed in its field.
    """
    if payload == b"OK":
        return IdentifyAnswer()
    try:
        document = json.loads(payload)
        if not isinstance(document, dict):
            raise TypeError("not an object")
        known = {name: document[name] for name in _ANSWER_TYPES if document.get(name) is not None}
        for name, value in known.items():
            check_type(name, value, _ANSWER_TYPES[name])
        return IdentifyAnswer(**known)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"the answer to IDENTIFY cannot be understood: {payload[:200]!r}") from error
