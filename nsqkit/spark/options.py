"""What a job consumes, and when it stops: the options of a consumer that is spread over Spark's partitions.

The rule it guards: a spec that exists is one that every executor can run. It is checked where it is made, on the
driver, by a sentence that names the option, the value and what is allowed; it is immutable, and it pickles. And it
is bounded: some rule ends every partition.

How to read it: durations are seconds or timedeltas, as everywhere in the public API. How the whole is shared out among
partitions is said in ``plan``.
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
    """Make a tuple of whatever lists addresses; one text stays what it is, for the check to refuse."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


@attrs.frozen(kw_only=True)
class ConsumerSpec:
    """A channel, and how Spark's partitions are to consume it.

    Attributes:
        topic: the topic.
        channel: the channel. All partitions share it, so each message goes to one of them.
        nsqd_tcp_addresses: ``host:port`` of each nsqd, as the executors reach it. The text becomes part of each
            message's key, so the same nsqd should have the same address in every run.
        partitions: how many tasks consume. None is one for each nsqd; with more, nsqds get several consumers, and
            with fewer, a partition consumes from several nsqds.
        max_in_flight: messages that may be delivered and unanswered at a time, over all partitions, from one for
            each connection up; 2500. A partition processes half of its share while it receives the other half. More
            than an nsqd's ``--max-rdy-count`` (2500) for one connection gains nothing.
        max_messages: how many messages the job takes, in even shares for the partitions; None is no limit.
        empty_for: a partition ends when nothing came for so long, on standing connections; 1 second. What is
            deferred, or in flight elsewhere, is not waited for. None: emptiness ends nothing.
        deadline: a partition receives no more after so long, and ends when the chunk in hand is processed; None is
            no limit.
        linger: a chunk is processed after so long, full or not; 0.2 seconds. A full one is processed at once.
        chunk_bytes: the bodies of a chunk, 64 MiB; the message that passes it is the last of its chunk.
        msg_timeout: after how long an nsqd gives the messages of a dead executor to another one; 60 seconds, as
            nsqd's default. Messages in hand are touched, so a chunk may take longer.
        connect_timeout: how long a partition waits for its nsqds before it fails; 10 seconds.

    Raises:
        OptionError: a value that cannot be used, or no rule that would end a partition.
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
        # The consumer's own checks of names, addresses and timeout, before the spec travels.
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
        """How many partitions there are."""
        return len(self.nsqd_tcp_addresses) if self.partitions is None else self.partitions

    @property
    def connection_count(self) -> int:
        """How many connections the partitions have together."""
        return max(self.partition_count, len(self.nsqd_tcp_addresses))
