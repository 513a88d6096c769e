"""The options of a consumer that runs in the partitions of a Spark job.

A spec is checked on the driver, where it is created, so that every executor can run it. It is immutable, pickles, and
has at least one limit that ends every partition. Durations are seconds or timedeltas. ``nsqkit.spark.plan`` divides the
limits among partitions.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from nsqkit.consumer import Consumer
from nsqkit.errors import OptionError
from nsqkit.options.fields import seconds, whole

PARTITIONS_MAX = 10_000
"""A job with more tasks is a mistake more often than it is intended."""

SECONDS_MAX = 86_400.0


def _addresses(value: object) -> object:
    """Return a tuple of the addresses; a value that is not a list of them is left to the consumer's check."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


@attrs.frozen(kw_only=True)
class ConsumerSpec:
    """A channel, and how Spark's partitions consume it.

    Attributes:
        topic: the topic.
        channel: the channel. All partitions share it, so each message goes to one of them.
        nsqd_tcp_addresses: ``host:port`` of each nsqd, as the executors reach it. The text becomes part of each
            message's key, so the same nsqd should have the same address in every run.
        partitions: number of consuming tasks; None for one for each nsqd. With more, nsqds get several consumers;
            with fewer, a partition consumes from several nsqds.
        max_in_flight: messages that may be delivered and unanswered at a time, over all partitions, at least one for
            each connection; 2500. A partition processes half of its share while it receives the other half. A share
            above nsqd's ``--max-rdy-count`` (2500) for one connection has no effect.
        max_messages: number of messages that the job takes, in even shares for the partitions; None for no limit.
        empty_for: time without messages, while connected, after which a partition ends; 1 second. It does not wait
            for messages that are deferred or in flight elsewhere. None: it does not end.
        deadline: time after which a partition receives no more and ends when its last chunk is processed; None for no
            limit.
        linger: time after which a chunk is processed although it is not full; 0.2 seconds.
        chunk_bytes: the bytes of bodies at which a chunk is full; 64 MiB.
        msg_timeout: time after which an nsqd delivers the messages of a dead executor again; 60 seconds, as nsqd's
            default. Unfinished messages are touched, so a chunk may take longer.
        connect_timeout: time that a partition waits for its nsqds before it fails; 10 seconds.

    Raises:
        OptionError: a value that cannot be used, or no limit that ends the partitions.
    """

    topic: str
    channel: str
    nsqd_tcp_addresses: tuple[str, ...] = attrs.field(converter=_addresses)
    partitions: int | None = whole(None, 1, PARTITIONS_MAX, or_none=True)
    max_in_flight: int = whole(2500, 1, 1_000_000)
    max_messages: int | None = whole(None, 0, 1 << 62, or_none=True)
    empty_for: float | None = seconds(1.0, 0.001, SECONDS_MAX, or_none=True)
    deadline: float | None = seconds(None, 0.001, SECONDS_MAX, or_none=True)
    linger: float = seconds(0.2, 0.0, SECONDS_MAX)
    chunk_bytes: int = whole(64 << 20, 1, 1 << 40)
    msg_timeout: float = seconds(60.0, 1.0, SECONDS_MAX)
    connect_timeout: float = seconds(10.0, 0.001, SECONDS_MAX)

    def __attrs_post_init__(self) -> None:
        if not self.nsqd_tcp_addresses:
            raise OptionError("nsqd_tcp_addresses is empty; allowed is one address or more")
        # The consumer checks names, addresses and timeout, before the spec is sent to executors.
        Consumer(
            self.topic,
            self.channel,
            nsqd_tcp_addresses=self.nsqd_tcp_addresses,
            max_in_flight=self.max_in_flight,
            msg_timeout=self.msg_timeout,
        )
        if self.max_messages is None and self.empty_for is None and self.deadline is None:
            raise OptionError(
                "max_messages, empty_for and deadline are all None; at least one of them has to end the partitions"
            )
        if len(set(self.nsqd_tcp_addresses)) < len(self.nsqd_tcp_addresses):
            raise OptionError(
                f"nsqd_tcp_addresses is {self.nsqd_tcp_addresses!r}; allowed is each address once; "
                "for several consumers of an nsqd there is partitions"
            )
        if self.max_in_flight < self.connection_count:
            raise OptionError(
                f"max_in_flight is {self.max_in_flight}; allowed is at least one for each of the "
                f"{self.connection_count} connections"
            )

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self.nsqd_tcp_addresses) if self.partitions is None else self.partitions

    @property
    def connection_count(self) -> int:
        """The number of connections of all partitions together."""
        return max(self.partition_count, len(self.nsqd_tcp_addresses))
