"""The broker's options: every flag of nsqd, with its default and its limits.

Values are checked when a ``BrokerOptions`` is made; the error names the option, the value and the limits. So a broker
can run with every ``BrokerOptions`` that exists.

There is one field per flag, in nsqd's order and with its defaults (nsqd/options.go). nsqd 1.3.0 refuses the flags under
"after 1.3.0", which only its master branch has. A field has the flag's name in snake case; lists are in the plural,
durations end in ``_ns`` and are integer nanoseconds, sizes are bytes. ``OPTIONS`` describes the fields for the command
line, the configuration file and ``GET /config``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from hashlib import md5
from typing import Final

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.fields import boolean, choice, duration, flags_of, floats, integer, string, strings
from nsqkit.options.option import Option

__all__ = ["OPTIONS", "BrokerOptions", "default_node_id"]

_SECOND: Final = 1_000_000_000
_MINUTE: Final = 60 * _SECOND
_PORT_MAX: Final = 65535

_LOG_LEVELS: Final = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}
_TLS_REQUIRED: Final = {"false": 0, "tcp-https": 1, "true": 2}
_TLS_VERSIONS: Final = {"": 0x0301, "tls1.0": 0x0301, "tls1.1": 0x0302, "tls1.2": 0x0303, "tls1.3": 0x0304}


def default_node_id(hostname: str) -> int:
    """Return the node id that nsqd takes on a host of this name."""
    # Not for security: a number that is spread well and the same at every start.
    digest = md5(hostname.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()
    return zlib.crc32(digest) % 1024


# In nsqd, node-id and broadcast-address depend on the host's name. This module does no I/O, so the defaults are those
# of a host called localhost; the command passes both.
_HOSTNAME: Final = "localhost"


@attrs.frozen(kw_only=True)
class BrokerOptions:
    """How a broker behaves; immutable, so that a change at runtime is a new object (``attrs.evolve``).

    Raises:
        OptionError: a value is of the wrong type, out of range, or contradicts another one.
    """

    # Basics.
    node_id: int = integer(
        default_node_id(_HOSTNAME),
        "number of this node, part of every message id (default: made from the host's name)",
        config_name="id",
        high=1023,
    )
    log_level: str = choice("info", "least level that is logged", _LOG_LEVELS)
    log_prefix: str = string("[nsqd] ", "how every line of the log begins")
    tcp_address: str = string(
        "0.0.0.0:4150", "where to listen for NSQ clients: HOST:PORT, or the path of a Unix socket"
    )
    http_address: str = string(
        "0.0.0.0:4151",
        "where to listen for HTTP clients: HOST:PORT, or the path of a Unix socket; empty for nowhere",
    )
    https_address: str = string(
        "0.0.0.0:4152", "where to listen for HTTPS clients, if there is a certificate: HOST:PORT"
    )
    broadcast_address: str = string(_HOSTNAME, "address that nsqlookupd gives to consumers (default: the host's name)")
    broadcast_tcp_port: int = integer(
        0, "TCP port that nsqlookupd gives out; 0 for the one listened on", high=_PORT_MAX
    )
    broadcast_http_port: int = integer(
        0, "HTTP port that nsqlookupd gives out; 0 for the one listened on", high=_PORT_MAX
    )
    lookupd_tcp_addresses: tuple[str, ...] = strings(
        "HOST:PORT of an nsqlookupd to register with; may be repeated",
        config_name="nsqlookupd_tcp_addresses",
        flag="lookupd-tcp-address",
    )
    auth_http_addresses: tuple[str, ...] = strings(
        "HOST:PORT or URL of an auth server; may be repeated",
        config_name="auth_http_addresses",
        flag="auth-http-address",
        shown=False,  # a URL may contain a password
    )
    http_client_connect_timeout_ns: int = duration(2 * _SECOND, "longest wait for a connection to an auth server")
    http_client_request_timeout_ns: int = duration(5 * _SECOND, "longest wait for an auth server's answer")

    # The queue on disk.
    data_path: str = string("", "directory for messages on disk and metadata (default: the current one)")
    mem_queue_size: int = integer(10_000, "messages kept in memory per topic and per channel; the rest goes to disk")
    max_bytes_per_file: int = integer(100 * 1024 * 1024, "bytes in a queue's file before the next one is begun", low=1)
    sync_every: int = integer(2500, "messages written or read between two fsyncs of a queue", low=1)
    sync_timeout_ns: int = duration(2 * _SECOND, "longest time between two fsyncs of a queue", low=1)

    # Search for timeouts: nsqd samples channels; here timeouts are exact without --timing=nsqd.
    queue_scan_selection_count: int = integer(20, "with --timing=nsqd, channels looked at for timeouts in one go")
    queue_scan_worker_pool_max: int = integer(
        4, "accepted for compatibility with nsqd, without effect: workers that search for timeouts"
    )

    # Messages and commands.
    msg_timeout_ns: int = duration(_MINUTE, "time after which an unanswered message is requeued", low=1)
    max_msg_timeout_ns: int = duration(
        15 * _MINUTE, "longest time that a message may be in flight, touched or not", low=1
    )
    max_msg_size: int = integer(1024 * 1024, "largest message, in bytes", low=1)
    max_body_size: int = integer(5 * 1024 * 1024, "largest body of one command, in bytes", low=1)
    max_req_timeout_ns: int = duration(60 * _MINUTE, "longest time to requeue or defer a message")

    # Limits of the values that a client can request.
    max_heartbeat_interval_ns: int = duration(_MINUTE, "longest heartbeat interval that a client can request")
    max_rdy_count: int = integer(2500, "greatest RDY count that a client may set", low=1)
    max_output_buffer_size: int = integer(64 * 1024, "largest output buffer that a client can request, in bytes", low=1)
    max_output_buffer_timeout_ns: int = duration(
        30 * _SECOND, "longest time in the output buffer that a client can request"
    )
    min_output_buffer_timeout_ns: int = duration(
        _SECOND // 40, "shortest time in the output buffer that a client can request"
    )
    output_buffer_timeout_ns: int = duration(
        _SECOND // 4, "time in the output buffer for clients that request none", low=1
    )
    max_channel_consumers: int = integer(0, "consumers that a channel may have; 0 for any number")

    # statsd.
    statsd_address: str = string("", "HOST:PORT of a statsd daemon, over UDP; empty for none")
    statsd_prefix: str = string("nsq.%s", "how keys for statsd begin; %s stands for the host")
    statsd_interval_ns: int = duration(_MINUTE, "time between two reports to statsd", low=1)
    statsd_mem_stats: bool = boolean(True, "report memory use to statsd, too")
    statsd_udp_packet_size: int = integer(508, "largest packet for statsd, in bytes", low=1, high=_PORT_MAX)
    statsd_exclude_ephemeral: bool = boolean(False, "leave ephemeral topics and channels out of reports to statsd")

    # Latency from publishing to finishing.
    e2e_processing_latency_window_time_ns: int = duration(
        10 * _MINUTE, "time over which latency percentiles are taken", low=1
    )
    e2e_processing_latency_percentiles: tuple[float, ...] = floats(
        "percentiles of latency to keep, above 0 and up to 1; may be repeated or separated by commas",
        config_name="e2e_processing_latency_percentiles",
        flag="e2e-processing-latency-percentile",
    )

    # TLS.
    tls_cert: str = string("", "path of the certificate")
    tls_key: str = string("", "path of the certificate's key")
    tls_client_auth_policy: str = string(
        "",
        "whether clients need a certificate: require, or require-verify for one that the CA signed",
        choices=("", "require", "require-verify"),
    )
    tls_root_ca_file: str = string("", "path of the certificates of the CA")
    tls_required: str = choice(
        "false", "refuse clients without TLS: true, false, or tcp-https to allow plain HTTP", _TLS_REQUIRED
    )
    tls_min_version: str = choice("tls1.0", "oldest version of TLS to accept", _TLS_VERSIONS)

    # Compression.
    deflate: bool = boolean(True, "let clients compress with deflate")
    max_deflate_level: int = integer(6, "greatest deflate level that a client can request", low=1, high=9)
    snappy: bool = boolean(True, "let clients compress with snappy")

    # After 1.3.0.
    auth_http_request_method: str = string("get", "HTTP method of requests to the auth server", choices=("get", "post"))
    topology_region: str = string("", "region that this node is in, told to clients")
    topology_zone: str = string("", "zone that this node is in, told to clients")
    enable_experiments: tuple[str, ...] = strings(
        "experimental feature to switch on; may be repeated: topology-aware-consumption",
        choices=("topology-aware-consumption",),
        flag="enable-experiment",
    )

    # Beyond nsqd.
    durability: str = string(
        "nsqd",
        "when a publisher is answered: nsqd as nsqd does it, fsync when the message is on disk and synced",
        choices=("nsqd", "fsync"),
    )
    timing: str = string(
        "exact",
        "when messages time out and deferred ones come: exact when they are due, nsqd as late as nsqd finds them",
        choices=("exact", "nsqd"),
    )
    keep_deferred: bool = boolean(False, "have deferred messages wait for their time after a restart, too")
    requeue_on_disconnect: bool = boolean(False, "requeue what a lost client has in flight at once, not at its timeout")
    busy_poll_ns: int = duration(
        0, "time to poll for the next publish instead of sleeping, up to a whole core; 0 for off"
    )

    def __attrs_post_init__(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            missing, given = ("tls_key", "tls_cert") if self.tls_cert else ("tls_cert", "tls_key")
            raise OptionError(
                f"option {missing} is empty and {given} is {getattr(self, given)!r}; allowed is both or neither"
            )
        if self.tls_demanded != "false" and not self.tls_cert:
            raise OptionError(
                f"option tls_required is {self.tls_required!r} and tls_client_auth_policy is "
                f"{self.tls_client_auth_policy!r}; without tls_cert allowed is 'false' and ''"
            )

    @property
    def tls_demanded(self) -> str:
        """``tls_required``, or ``"true"`` where a client certificate is required, which implies it in nsqd."""
        if self.tls_client_auth_policy and self.tls_required == "false":
            return "true"
        return self.tls_required

    def config_value(self, config_name: str) -> str | int | list[str] | list[float]:
        """Return an option's value as nsqd's ``GET /config/NAME`` gives it.

        Durations are nanoseconds there, and choices are nsqd's numbers for them.

        Raises:
            OptionError: there is no option of this name.
        """
        name = _FIELDS.get(config_name)
        if name is None:
            raise OptionError(f"{config_name!r} is not an option; allowed is one of {', '.join(_FIELDS)}")
        value: str | int | list[str] | list[float]
        value = self.tls_demanded if name == "tls_required" else getattr(self, name)
        if isinstance(value, tuple):
            return [1 if item == 1 else item for item in value]  # Go writes a whole number without a fraction
        numbers = OPTIONS[name].choices
        return numbers[value] if isinstance(numbers, Mapping) else value


OPTIONS: Final[Mapping[str, Option]] = flags_of(BrokerOptions)
"""Every option by the name of its field, in nsqd's order."""

_FIELDS: Final = {option.config_name: name for name, option in OPTIONS.items()}
