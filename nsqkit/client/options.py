"""The options of a connection, with go-nsq's names.

Each option, and each combination, is checked when the object is made. Durations are seconds, as everywhere in the
public API.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, NoReturn, TypeAlias, TypedDict

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.durations import Seconds
from nsqkit.options.fields import flag, function, instance_with, seconds, secret, text, whole, word
from nsqkit.transport.tls import TLS_VERSIONS, Context
from nsqkit.wire.compression import snappy_available
from nsqkit.wire.identify import IdentifyRequest

OnConnection: TypeAlias = Callable[[str, Exception | None], object]
"""Called with the address of an nsqd, and the error that ended its connection; None for a new connection."""

USER_AGENT: Final = "nsqkit/0.1.0"

DEFLATE_LEVEL_DEFAULT: Final = 6

_SET_BY_CONTEXT: Final = (
    *("tls_root_ca_file", "tls_cert", "tls_key"),
    *("tls_min_version", "tls_insecure_skip_verify"),
)
_NEEDS_TLS: Final = ("tls_context", *_SET_BY_CONTEXT, "tls_server_name")
_OFF: Final = -1
"""The value in IDENTIFY that disables a setting; 0 is for the broker's default."""


class ConnectionKeywords(TypedDict, total=False):
    """The options of ``ConnectionOptions`` as keyword arguments."""

    client_id: str
    hostname: str
    user_agent: str
    heartbeat_interval: Seconds
    dial_timeout: Seconds
    read_timeout: Seconds
    write_timeout: Seconds
    local_addr: str
    tls_v1: bool
    tls_context: Context | None
    tls_root_ca_file: str
    tls_cert: str
    tls_key: str
    tls_min_version: str
    tls_insecure_skip_verify: bool
    tls_server_name: str
    snappy: bool
    deflate: bool
    deflate_level: int
    auth_secret: str
    output_buffer_size: int
    output_buffer_timeout: Seconds
    topology_region: str
    topology_zone: str
    max_msg_size: int
    max_body_size: int
    reconnect_delay_min: Seconds
    reconnect_delay_max: Seconds
    on_connection: OnConnection | None
    end_on_permanent_error: bool


@attrs.frozen(kw_only=True)
class ConnectionOptions:
    """The options of any connection. Durations are in seconds.

    Attributes:
        client_id: the name of the client; by default the host's short name.
        hostname: the host in IDENTIFY; by default this host's name.
        user_agent: the software in IDENTIFY.
        heartbeat_interval: time between the broker's heartbeats, 1 to 60; 30 as in go-nsq. 0 disables them, for
            producers only; then ``read_timeout`` does not apply.
        dial_timeout: limit of dialling and handshake together, 0.1 to 300; 1 as in go-nsq. If the broker queries an
            auth server, its answer to AUTH may take ``read_timeout``.
        read_timeout: time without received bytes after which the connection is closed, 0.1 to 300; 60 as in go-nsq. At
            least ``heartbeat_interval``.
        write_timeout: time in which the broker must accept at least one byte while there are bytes to send, 0.1 to 300;
            1 as in go-nsq.
        local_addr: IP address of this machine to connect from; by default the system chooses.
        tls_v1: use TLS, and close a connection to a broker that does not offer it. Certificates are verified.
        tls_context: an ``ssl.SSLContext``, instead of the options down to tls_insecure_skip_verify.
        tls_root_ca_file: file of certificates in PEM, one of which must have signed the broker's; by default those
            that the system trusts.
        tls_cert: file with the client's certificate in PEM.
        tls_key: file with its key.
        tls_min_version: ``tls1.0`` to ``tls1.3``, by default ``tls1.2``.
        tls_insecure_skip_verify: accept any certificate, which is insecure.
        tls_server_name: the name in the broker's certificate; by default the host in its address, and ``localhost``
            for a Unix socket.
        snappy: compress with snappy if the broker allows it; needs the extra ``nsqkit[snappy]``.
        deflate: compress with deflate if the broker allows it.
        deflate_level: 1 (fast) to 9 (small); 6.
        auth_secret: the secret that AUTH sends to a broker that requires it; it is in no repr, log or error.
        output_buffer_size: bytes that the broker collects before it sends, at least 64; 16384 as in go-nsq. 0 disables
            the buffer.
        output_buffer_timeout: time after which the broker sends collected bytes; 0.25 as in go-nsq. 0 is for never:
            then it sends when the buffer is full, with responses and with heartbeats.
        topology_region: region of this client.
        topology_zone: zone in that region.
        max_msg_size: limit of a message in bytes, sent or received; 1 MiB, nsqd's default.
        max_body_size: limit of the messages of one call together, in bytes; 5 MiB, nsqd's default.
        reconnect_delay_min: the first limit of the random delay before a new attempt to connect; it doubles with each
            failure.
        reconnect_delay_max: the highest limit.
        on_connection: called with the address of an nsqd and None after each handshake, and with the address and the
            error each time a connection was lost or failed. It must not block; its exceptions are logged.
        end_on_permanent_error: raise an error that a new connection cannot correct, such as a refused secret: a
            consumer ends with it, and publishes that wait for a connection raise it. Otherwise the error is logged and
            the client keeps connecting.
    """

    client_id: str = text("")
    hostname: str = text("")
    user_agent: str = text(USER_AGENT)
    heartbeat_interval: float = seconds(30.0, 1.0, 60.0, or_zero=True)
    dial_timeout: float = seconds(1.0, 0.1, 300.0)
    read_timeout: float = seconds(60.0, 0.1, 300.0)
    write_timeout: float = seconds(1.0, 0.1, 300.0)
    local_addr: str = text("")
    tls_v1: bool = flag(False)
    tls_context: Context | None = instance_with("wrap_bio", "ssl.create_default_context()")
    tls_root_ca_file: str = text("")
    tls_cert: str = text("")
    tls_key: str = text("")
    tls_min_version: str = word("tls1.2", tuple(TLS_VERSIONS))
    tls_insecure_skip_verify: bool = flag(False)
    tls_server_name: str = text("")
    snappy: bool = flag(False)
    deflate: bool = flag(False)
    deflate_level: int = whole(DEFLATE_LEVEL_DEFAULT, 1, 9)
    auth_secret: str = secret()
    output_buffer_size: int = whole(16384, 64, 1 << 30, or_zero=True)
    output_buffer_timeout: float = seconds(0.25, 0.001, 3600.0, or_zero=True)
    topology_region: str = text("")
    topology_zone: str = text("")
    max_msg_size: int = whole(1 << 20, 1, 1 << 30)
    max_body_size: int = whole(5 << 20, 9, 1 << 30)
    reconnect_delay_min: float = seconds(0.1, 0.001, 60.0)
    reconnect_delay_max: float = seconds(15.0, 0.001, 3600.0)
    on_connection: OnConnection | None = function()
    end_on_permanent_error: bool = flag(False)

    addresses: ClassVar[tuple[str, ...]] = ("nsqd_tcp_addresses",)
    """The lists of addresses that a client takes besides its options."""

    def __attrs_post_init__(self) -> None:
        if self.heartbeat_interval > self.read_timeout:
            self._refuse("heartbeat_interval", f"at most read_timeout, {self.read_timeout}")
        if self.reconnect_delay_min > self.reconnect_delay_max:
            self._refuse("reconnect_delay_min", f"at most reconnect_delay_max, {self.reconnect_delay_max}")
        if self.local_addr:
            try:
                ipaddress.ip_address(self.local_addr)
            except ValueError:
                self._refuse("local_addr", "an IP address such as '192.0.2.7' or '2001:db8::7'")
        self._check_compression()
        self._check_tls()

    def _check_compression(self) -> None:
        if self.snappy and self.deflate:
            raise OptionError("snappy and deflate are both True; allowed is at most one of them")
        if self.snappy and not snappy_available():
            self._refuse("snappy", "that only with the extra nsqkit[snappy] installed")
        if self.deflate_level != DEFLATE_LEVEL_DEFAULT and not self.deflate:
            self._refuse("deflate_level", "to set it only with deflate")

    def _check_tls(self) -> None:
        if not self.tls_v1 and (wrong := self._first_set(_NEEDS_TLS)):
            self._refuse(wrong, "to set it only with tls_v1")
        if self.tls_context is not None and (wrong := self._first_set(_SET_BY_CONTEXT)):
            self._refuse(wrong, "to set it only without tls_context, which sets it")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise OptionError(
                f"tls_cert is {self.tls_cert!r} and tls_key is {self.tls_key!r}; allowed is both or neither"
            )
        if self.tls_insecure_skip_verify and self.tls_root_ca_file:
            self._refuse("tls_root_ca_file", "to set it only without tls_insecure_skip_verify")

    def _refuse(self, name: str, allowed: str) -> NoReturn:
        raise OptionError(f"{name} is {getattr(self, name)!r}; allowed is {allowed}")

    def _first_set(self, names: Sequence[str]) -> str | None:
        """Return the first of these options whose value is not its default."""
        fields = attrs.fields_dict(type(self))
        return next((name for name in names if getattr(self, name) != fields[name].default), None)

    def identify_request(self, own_hostname: str, *, msg_timeout_ms: int = 0, sample_rate: int = 0) -> IdentifyRequest:
        """Return the body of IDENTIFY; ``own_hostname`` is the name of this machine, the default of ``hostname``.

        A consumer has a message timeout, 0 for the broker's default, and a sample rate, 0 for all messages.
        """
        hostname = self.hostname or own_hostname
        return IdentifyRequest(
            client_id=self.client_id or hostname.partition(".")[0],
            hostname=hostname,
            user_agent=self.user_agent,
            feature_negotiation=True,
            heartbeat_interval=round(self.heartbeat_interval * 1000) or _OFF,
            output_buffer_size=self.output_buffer_size or _OFF,
            output_buffer_timeout=round(self.output_buffer_timeout * 1000) or _OFF,
            tls_v1=self.tls_v1,
            snappy=self.snappy,
            deflate=self.deflate,
            deflate_level=self.deflate_level if self.deflate else 0,
            msg_timeout=msg_timeout_ms,
            sample_rate=sample_rate,
            topology_region=self.topology_region,
            topology_zone=self.topology_zone,
        )
