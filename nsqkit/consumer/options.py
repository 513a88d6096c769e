"""Options of a consumer, under go-nsq's names and with go-nsq's ranges; see ``nsqkit.client.options``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import attrs

from nsqkit.client.options import ConnectionKeywords, ConnectionOptions
from nsqkit.errors import OptionError
from nsqkit.lookup.options import LookupOptions
from nsqkit.options.durations import Seconds
from nsqkit.options.fields import function, seconds, whole

if TYPE_CHECKING:
    from ssl import SSLContext

    from nsqkit.http.daemon import HTTPRequest
    from nsqkit.lookup.selection import AddressMap, DiscoveryFilter

BackoffStrategy: TypeAlias = Literal["exponential", "full-jitter"] | Callable[[int], float]
"""One of go-nsq's two, or a function from the attempt (1, 2, 3, …) to the seconds to wait."""

RequeueDelayPolicy: TypeAlias = Callable[[int], float]
"""From a message's attempts to the seconds until its next delivery."""

BACKOFF_STRATEGIES = ("exponential", "full-jitter")


def _check_strategy(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not callable(value) and not (isinstance(value, str) and value in BACKOFF_STRATEGIES):
        raise OptionError(
            f'{attribute.name} is {value!r}; allowed is "exponential", "full-jitter" or a function of the attempt'
        )


class ConsumerKeywords(ConnectionKeywords, total=False):
    """The options of ``ConsumerOptions`` as keyword arguments."""

    max_in_flight: int
    msg_timeout: Seconds
    sample_rate: int
    default_requeue_delay: Seconds
    max_requeue_delay: Seconds
    requeue_delay_policy: RequeueDelayPolicy | None
    max_attempts: int
    backoff_strategy: BackoffStrategy
    backoff_multiplier: Seconds
    max_backoff_duration: Seconds
    low_rdy_idle_timeout: Seconds
    low_rdy_timeout: Seconds
    rdy_redistribute_interval: Seconds
    close_timeout: Seconds
    max_connections: int
    lookupd_poll_interval: Seconds
    lookupd_poll_jitter: float
    lookupd_poll_timeout: Seconds
    lookupd_authorization: str
    lookupd_tls_context: SSLContext | None
    lookupd_tls_root_ca_file: str
    lookupd_tls_cert: str
    lookupd_tls_key: str
    lookupd_http_request: HTTPRequest | None
    discovery_filter: DiscoveryFilter | None
    address_map: AddressMap | None


@attrs.frozen(kw_only=True)
class ConsumerOptions(ConnectionOptions, LookupOptions):
    """The options of a consumer, in addition to ``ConnectionOptions`` and ``LookupOptions``.

    Durations are in seconds.

    Attributes:
        max_in_flight: messages that may be delivered and unanswered at a time, over all connections; 0 pauses. 1, or
            the concurrency of ``run`` if that is higher and this was not set.
        msg_timeout: after how long nsqd delivers an unanswered message again, at least 1; 0 leaves it to nsqd, by
            default 60.
        sample_rate: percentage of the messages to deliver; nsqd drops the others from the channel. 0 is all.
        default_requeue_delay: the delay of a requeue without one, times attempts; 90.
        max_requeue_delay: the longest of these delays; 900.
        requeue_delay_policy: a function from a message's attempts to the seconds, in place of
            ``default_requeue_delay``.
        max_attempts: the attempt after which a message is given up if its handler fails, in ``run`` and
            ``run_batches``; 5. 0 is no limit.
        backoff_strategy: the duration of a backoff: "exponential", "full-jitter" (random between 0 and that), or
            a function from the attempt (1, 2, 3, …) to the seconds.
        backoff_multiplier: half of the first backoff, which doubles with each further failure; 1.
        max_backoff_duration: the longest backoff; 120. 0 switches backoff off.
        low_rdy_idle_timeout: after this time without a message a connection loses its RDY, if there are more
            connections than max_in_flight; 10.
        low_rdy_timeout: after this time it loses it in any case; 30.
        rdy_redistribute_interval: how often these two are checked; 5.
        close_timeout: how long handlers that have begun may run after ``stop``, or when the consumer is left; then
            they are cancelled and their messages requeued. 25, because Kubernetes kills after 30. nsqds get at most 5
            of it to answer CLS.
        max_connections: the maximum of connected nsqds, 1 to 100,000; 1,000, which is about as many files as a process
            may have open by default. Named nsqds are always connected, and of the listed ones the first.
            ``stats().left_out`` counts the others.
    """

    max_in_flight: int = whole(1, 0, 1_000_000)
    msg_timeout: float = seconds(0.0, 1.0, 86_400.0, or_zero=True)
    sample_rate: int = whole(0, 0, 99)
    default_requeue_delay: float = seconds(90.0, 0.0, 3600.0)
    max_requeue_delay: float = seconds(900.0, 0.0, 3600.0)
    requeue_delay_policy: RequeueDelayPolicy | None = function()
    max_attempts: int = whole(5, 0, 65_535)
    backoff_strategy: BackoffStrategy = attrs.field(default="exponential", validator=_check_strategy)
    backoff_multiplier: float = seconds(1.0, 0.0, 3600.0)
    max_backoff_duration: float = seconds(120.0, 0.0, 3600.0)
    low_rdy_idle_timeout: float = seconds(10.0, 1.0, 300.0)
    low_rdy_timeout: float = seconds(30.0, 1.0, 300.0)
    rdy_redistribute_interval: float = seconds(5.0, 0.001, 5.0)
    close_timeout: float = seconds(25.0, 0.0, 3600.0)
    max_connections: int = whole(1000, 1, 100_000)

    addresses: ClassVar[tuple[str, ...]] = ("nsqd_tcp_addresses", "lookupd_http_addresses")

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.heartbeat_interval:
            raise OptionError("heartbeat_interval is 0; allowed is at least 1 second, but for producers")
