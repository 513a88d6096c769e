"""The options of a producer, checked when it is created: an error has the option, its value and the allowed values."""

from __future__ import annotations

from typing import ClassVar

import attrs

from nsqkit.client.options import ConnectionKeywords, ConnectionOptions
from nsqkit.options.durations import Seconds
from nsqkit.options.fields import seconds, whole, word
from nsqkit.producer.policy import POLICIES


class ProducerKeywords(ConnectionKeywords, total=False):
    """The options of ``ProducerOptions`` as keyword arguments."""

    connect_timeout: Seconds
    publish_timeout: Seconds
    publish_attempts: int
    policy: str
    linger: Seconds
    linger_max_messages: int
    linger_max_bytes: int
    max_outstanding_bytes: int
    max_defer_timeout: Seconds


@attrs.frozen(kw_only=True)
class ProducerOptions(ConnectionOptions):
    """The options of a producer, besides those of ``ConnectionOptions``.

    Attributes:
        connect_timeout: seconds that a publish waits for a connection while there is none, 0 to 3600.
        publish_timeout: seconds after which a publish raises ``PublishTimeout``, 0 to 3600; 0 for no limit.
        publish_attempts: how often a publish may be sent, 1 to 100. With 1, a publish that raises ``ConnectionLost``
            may have arrived. With more it is sent again, to another nsqd if there is one, and may arrive **more than
            once**. A publish that has certainly not arrived is sent again in any case.
        policy: which nsqd gets a publish: ``round-robin``, ``random``, ``least-busy`` or ``by-key``.
        linger: seconds that a single publish may wait for others to the same topic, to be sent with them in one
            command, 0 to 60; 0 for never. It waits only while an earlier one has no answer.
        linger_max_messages: the limit of messages in such a command, 2 to 100,000.
        linger_max_bytes: its limit in bytes, 1 KiB to 1 GiB.
        max_outstanding_bytes: bytes that may be published without an answer; further publishes wait, in order of
            arrival. 0 for no limit. A larger message is sent alone.
        max_defer_timeout: the longest delay of a deferred publish, in seconds; nsqd's default for
            ``--max-req-timeout``, 1 hour.
    """

    connect_timeout: float = seconds(5.0, 0.0, 3600.0)
    publish_timeout: float = seconds(0.0, 0.0, 3600.0)
    publish_attempts: int = whole(1, 1, 100)
    policy: str = word("round-robin", tuple(POLICIES))
    linger: float = seconds(0.0, 0.0, 60.0)
    linger_max_messages: int = whole(500, 2, 100_000)
    linger_max_bytes: int = whole(1 << 20, 1 << 10, 1 << 30)
    max_outstanding_bytes: int = whole(0, 0, 1 << 36)
    max_defer_timeout: float = seconds(3600.0, 0.0, 1e9)

    addresses: ClassVar[tuple[str, ...]] = ("nsqd_tcp_addresses", "nsqd_http_addresses")

    @property
    def batch_size_max(self) -> int:
        """The limit of a batch that lingers, in bytes: nsqd refuses more than ``max_body_size`` in a command."""
        return min(self.linger_max_bytes, self.max_body_size)
