"""Options of a connection, under go-nsq's names.

The rule it guards: every option is checked when the object is made, by a sentence that names the option, the value
and what is allowed; nothing wrong reaches the wire. Durations are seconds here, as everywhere in the public API,
and become nanoseconds or milliseconds on their way down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import attrs

from nsqkit.errors import OptionError
from nsqkit.transport.address import split_address
from nsqkit.wire.identify import IdentifyRequest

if TYPE_CHECKING:
    from attrs import AttrsInstance

T = TypeVar("T", bound="AttrsInstance")

USER_AGENT = "nsqkit/0.1.0"


def _in_range(kind: str, least: float, most: float, unit: str) -> Callable[[Any, Any, object], None]:
    """Return a validator for ``kind`` of number from ``least`` to ``most``."""
    types = int if kind == "a whole number" else int | float

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        # Comparisons with NaN are False, so it is refused like everything else that is outside.
        if not isinstance(value, types) or isinstance(value, bool) or not least <= value <= most:
            allowed = f"{kind} from {least:.12g} to {most:.12g}{unit}"
            raise OptionError(f"{attribute.name} is {value!r}; allowed is {allowed}")

    return check


def seconds(default: float, least: float, most: float) -> Any:
    """Declare an option that is a length of time."""
    return attrs.field(default=default, validator=_in_range("a number", least, most, " seconds"))


def whole(default: int, least: int, most: int) -> Any:
    """Declare an option that is a count or a size."""
    return attrs.field(default=default, validator=_in_range("a whole number", least, most, ""))


def text(default: str) -> Any:
    """Declare an option that is a text."""

    def check(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
        if not isinstance(value, str):
            raise OptionError(f"{attribute.name} is {value!r}; allowed is a str")

    return attrs.field(default=default, validator=check)


class ConnectionKeywords(TypedDict, total=False):
    """The options of ``ConnectionOptions`` as keyword arguments."""

    client_id: str
    hostname: str
    user_agent: str
    heartbeat_interval: float
    dial_timeout: float
    read_timeout: float
    max_msg_size: int
    max_body_size: int
    reconnect_delay_min: float
    reconnect_delay_max: float


@attrs.frozen(kw_only=True)
class ConnectionOptions:
    """What can be set about any connection.

    Attributes:
        client_id: how the client calls itself; by default the host's short name.
        hostname: where it says it runs; by default the host's name.
        user_agent: what it says it is.
        heartbeat_interval: seconds between the broker's heartbeats, 1 to 60; go-nsq's default is 30.
        dial_timeout: seconds for dialling and greeting together, 0.1 to 300; 1 as in go-nsq.
        read_timeout: seconds of silence after which the broker counts as dead, 0.1 to 300; 60 as in go-nsq. At
            least the heartbeat interval, or a healthy broker would count as dead.
        max_msg_size: bytes that a message may have, checked before it is sent; nsqd's default, 1 MiB.
        max_body_size: bytes that the messages of one call may have together; nsqd's default, 5 MiB.
        reconnect_delay_min: seconds from which the delay before dialling again grows; it doubles with each
            failure, and a random part of it is waited.
        reconnect_delay_max: seconds to which it grows.
    """

    client_id: str = text("")
    hostname: str = text("")
    user_agent: str = text(USER_AGENT)
    heartbeat_interval: float = seconds(30.0, 1.0, 60.0)
    dial_timeout: float = seconds(1.0, 0.1, 300.0)
    read_timeout: float = seconds(60.0, 0.1, 300.0)
    max_msg_size: int = whole(1 << 20, 1, 1 << 30)
    max_body_size: int = whole(5 << 20, 9, 1 << 30)
    reconnect_delay_min: float = seconds(0.1, 0.001, 60.0)
    reconnect_delay_max: float = seconds(15.0, 0.001, 3600.0)

    def __attrs_post_init__(self) -> None:
        if self.heartbeat_interval > self.read_timeout:
            raise OptionError(
                f"heartbeat_interval is {self.heartbeat_interval}; allowed is at most read_timeout, {self.read_timeout}"
            )
        if self.reconnect_delay_min > self.reconnect_delay_max:
            raise OptionError(
                f"reconnect_delay_min is {self.reconnect_delay_min}; "
                f"allowed is at most reconnect_delay_max, {self.reconnect_delay_max}"
            )

    def identify_request(
        self, own_hostname: str, *, msg_timeout_ms: int = 0, sample_rate: int = 0
    ) -> IdentifyRequest:
        """Return what is told and asked in IDENTIFY.

        Args:
            own_hostname: what this machine calls itself, for whoever has not set ``hostname``.
            msg_timeout_ms: what a consumer asks for; 0 leaves it to the broker.
            sample_rate: likewise.
        """
        hostname = self.hostname or own_hostname
        return IdentifyRequest(
            client_id=self.client_id or hostname.partition(".")[0],
            hostname=hostname,
            user_agent=self.user_agent,
            feature_negotiation=True,
            heartbeat_interval=round(self.heartbeat_interval * 1000),
            msg_timeout=msg_timeout_ms,
            sample_rate=sample_rate,
        )


def make_options(cls: type[T], values: dict[str, Any]) -> T:
    """Return ``cls(**values)``; a name that is no option is refused by name.

    Raises:
        OptionError: an unknown option, or a value that is not allowed.
    """
    known = [field.name for field in attrs.fields(cls)]
    for name in values:
        if name not in known:
            raise OptionError(f"there is no option {name!r}; there are {', '.join(known)}")
    return cls(**values)


def check_addresses(addresses: object, name: str) -> tuple[str, ...]:
    """Return the addresses, each checked to be ``host:port``.

    Raises:
        OptionError: one of them is not, or it is not a list of them.
    """
    if isinstance(addresses, str | bytes) or not isinstance(addresses, Sequence):
        raise OptionError(f'{name} is {addresses!r}; allowed is a list such as ["127.0.0.1:4150"]')
    for address in addresses:
        if not isinstance(address, str):
            raise OptionError(f'{name} holds {address!r}; allowed are texts such as "127.0.0.1:4150"')
        split_address(address)
    return tuple(dict.fromkeys(addresses))
