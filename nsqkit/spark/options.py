"""The options of a consumer that runs in the partitions of a Spark job.

A spec is checked on the driver, where it is created, so that every executor can run it. It is immutable, pickles, and
has at least one limit that ends every partition. Durations are seconds or timedeltas. ``nsqkit.spark.batch_plan``
divides the limits among partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import attrs

from nsqkit.client.options import ConnectionOptions
from nsqkit.consumer import Consumer
from nsqkit.consumer.options import ConsumerKeywords, ConsumerOptions
from nsqkit.errors import OptionError
from nsqkit.http.daemon import Daemon
from nsqkit.lookup.options import LookupOptions
from nsqkit.options.checks import unknown_name
from nsqkit.options.fields import flag, seconds, whole
from nsqkit.spark.option_text import LOOKUPD_TIMEOUT, NSQ_OPTIONS
from nsqkit.wire.names import encode_topic

PARTITIONS_MAX: Final = 1024
"""The number of a row has 10 bits for its partition (``nsqkit.spark.schema``)."""

SECONDS_MAX: Final = 86_400.0

HTTP_TIMEOUT: Final = 10.0
"""Seconds that an nsqd may take to answer a request for its statistics."""

SECRETS: Final = frozenset(option.field for option in NSQ_OPTIONS if option.hidden)

CONNECTION_NAMES: Final = (*(option.field for option in NSQ_OPTIONS), "address_map")
"""The names that ``ConsumerSpec.connection`` may have; objects and functions cannot be sent to executors."""


def _topics(value: object) -> object:
    return (value,) if isinstance(value, str) else _texts(value)


def _texts(value: object) -> object:
    """Return a tuple of the texts; a value that is not a list of them is left to the checks."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _copy(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def show_addresses(addresses: tuple[str, ...]) -> str:
    """Return addresses without the users, passwords and queries of their URLs."""
    return repr(tuple(map(http_name, addresses)))


def show_connection(connection: Mapping[str, object]) -> str:
    return repr({name: "(hidden)" if name in SECRETS else value for name, value in connection.items()})


def http_name(address: str) -> str:
    """Return the address of a daemon without secrets; raise OptionError if it is not an address for HTTP."""
    return Daemon(address, connect_timeout=HTTP_TIMEOUT, request_timeout=HTTP_TIMEOUT, body_max=0).name


def _check_texts(name: str, values: object, allowed: str) -> None:
    """Refuse all values but tuples of different texts; the value is not shown, since a URL may contain a password."""
    if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
        raise OptionError(f"{name} is no list of texts; allowed is {allowed}")
    if len(set(values)) < len(values):
        raise OptionError(f"{name} has one text twice; allowed is {allowed}")


def check_addresses(nsqd_tcp_addresses: tuple[str, ...], lookupd_http_addresses: tuple[str, ...]) -> None:
    """Raise OptionError unless exactly one of the lists has addresses, each once."""
    _check_texts("nsqd_tcp_addresses", nsqd_tcp_addresses, "a list of host:port, each once")
    _check_texts("lookupd_http_addresses", lookupd_http_addresses, "a list of host:port or URLs, each once")
    if bool(nsqd_tcp_addresses) == bool(lookupd_http_addresses):
        both = "set" if nsqd_tcp_addresses else "empty"
        raise OptionError(
            f"nsqd_tcp_addresses and lookupd_http_addresses are both {both}; allowed is exactly one of them"
        )


def check_connection(connection: Mapping[str, Any]) -> None:
    """Raise OptionError for a name that is not among ``CONNECTION_NAMES``, or a value that cannot be sent."""
    if not isinstance(connection, Mapping):
        raise OptionError(f"connection is a {type(connection).__name__}; allowed is a mapping of options")
    for name in connection:
        if name in CONNECTION_NAMES:
            continue
        if name in attrs.fields_dict(ConsumerSpec):
            raise OptionError(f"connection has {name!r}; allowed is to set it as an option of the spec itself")
        if name in attrs.fields_dict(ConsumerOptions):
            raise OptionError(
                f"connection has {name!r}, which has no effect in Spark's partitions or cannot be sent there; "
                f"allowed are {', '.join(CONNECTION_NAMES)}"
            )
        raise unknown_name(name, ConsumerOptions)
    address_map = connection.get("address_map")
    if address_map is not None and not isinstance(address_map, Mapping):
        raise OptionError(f"address_map is {address_map!r}; allowed is a mapping, which can be sent to executors")


def lookup_options(connection: Mapping[str, Any]) -> LookupOptions:
    """Return the options of requests to nsqlookupds that are among those of a connection, with their defaults here."""
    names = attrs.fields_dict(LookupOptions)
    given = {name: value for name, value in connection.items() if name in names}
    return LookupOptions(**{"lookupd_poll_timeout": LOOKUPD_TIMEOUT, **given})


@attrs.frozen(kw_only=True)
class ConsumerSpec:
    """The topics of a channel, and how Spark's partitions consume them.

    Attributes:
        topics: the topics; a str is one topic.
        channel: the channel of each topic. All partitions share it, so each message goes to one of them.
        nsqd_tcp_addresses: ``host:port`` of each nsqd, as the executors reach it. The text becomes part of each
            message's key, so the same nsqd should have the same address in every run.
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd, which lists the nsqds at each plan; instead of
            ``nsqd_tcp_addresses``.
        nsqd_http_addresses: ``host:port`` or URL for the statistics of each nsqd of ``nsqd_tcp_addresses``, in the same
            order; empty if they are not queried. An nsqlookupd lists the HTTP addresses of its nsqds itself.
        partitions: number of consuming tasks; None for one for each nsqd and topic, from 2 to ``max_partitions``. With
            more, nsqds get several consumers; with fewer, a partition consumes from several nsqds.
        max_partitions: the most tasks if ``partitions`` is None; 64.
        max_in_flight: messages that may be delivered and unanswered at a time, over all partitions; 2500. A partition
            processes half of its share while it receives the other half. A share above nsqd's ``--max-rdy-count``
            (2500) for one connection has no effect, and large messages have fewer in flight: see ``chunk_bytes``.
        max_messages: number of messages that the job takes, in even shares for the partitions; None for no limit.
        max_bytes: bytes of bodies that the job takes, in even shares. A partition ends after the chunk that reaches its
            share; None for no limit.
        empty_for: time without messages, while connected, after which a partition ends; 1 second, at least twice the
            ``output_buffer_timeout``. It does not wait for messages that are deferred. None: it does not end.
        deadline: time after which a partition receives no more and ends when its last chunk is processed; None for no
            limit.
        linger: time after which a chunk is processed although it is not full; 0.2 seconds.
        stop_after_linger: end a partition after a chunk that was processed because of ``linger``, when the partition
            has received everything that was waiting; False. For the batches of a stream: messages that arrive slowly
            make small batches early.
        chunk_bytes: the bytes of bodies at which a chunk is full; 4 MiB. A partition has about twice as many in flight
            at most, by the mean size of its messages.
        msg_timeout: time after which an nsqd delivers the messages of a dead executor again; 60 seconds, as nsqd's
            default. Unfinished messages are touched, so a chunk may take longer.
        connect_timeout: time that a partition waits for its nsqds; 10 seconds.
        fail_on_node_loss: fail a partition if it does not reach one of its nsqds within ``connect_timeout``; True. If
            False, it takes no messages from that nsqd.
        max_attempts: deliveries after which a message is published to ``dead_letter_topic`` of its nsqd and finished;
            0 for no limit.
        dead_letter_topic: the topic of these messages; None, or required with ``max_attempts``.
        wait_in_flight: a bounded run waits for messages that are in flight to other consumers; False.
        connection: further options of each connection and of the requests to nsqlookupds, by the keywords of
            ``Consumer``: TLS (by the names of files, which each executor has), AUTH, compression, ``address_map``. The
            values of secrets are in no repr. ``output_buffer_timeout`` is 0.025 here.

    Raises:
        OptionError: a value that cannot be used, or no limit that ends the partitions.
    """

    topics: tuple[str, ...] = attrs.field(converter=_topics)
    channel: str
    nsqd_tcp_addresses: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    lookupd_http_addresses: tuple[str, ...] = attrs.field(default=(), converter=_texts, repr=show_addresses)
    nsqd_http_addresses: tuple[str, ...] = attrs.field(default=(), converter=_texts, repr=show_addresses)
    partitions: int | None = whole(None, 1, PARTITIONS_MAX, or_none=True)
    max_partitions: int = whole(64, 1, PARTITIONS_MAX)
    max_in_flight: int = whole(2500, 1, 1_000_000)
    max_messages: int | None = whole(None, 1, 1 << 62, or_none=True)
    max_bytes: int | None = whole(None, 1, 1 << 62, or_none=True)
    empty_for: float | None = seconds(1.0, 0.001, SECONDS_MAX, or_none=True)
    deadline: float | None = seconds(None, 0.001, SECONDS_MAX, or_none=True)
    linger: float = seconds(0.2, 0.0, SECONDS_MAX)
    stop_after_linger: bool = flag(False)
    chunk_bytes: int = whole(4 << 20, 1, 1 << 40)
    msg_timeout: float = seconds(60.0, 1.0, SECONDS_MAX)
    connect_timeout: float = seconds(10.0, 0.001, SECONDS_MAX)
    fail_on_node_loss: bool = flag(True)
    max_attempts: int = whole(0, 0, 65_535)
    dead_letter_topic: str | None = None
    wait_in_flight: bool = flag(False)
    connection: Mapping[str, Any] = attrs.field(factory=dict, converter=_copy, hash=False, repr=show_connection)

    def __attrs_post_init__(self) -> None:
        check_connection(self.connection)
        self._check_topics()
        self._check_addresses()
        # The consumer checks names, addresses and options, before the spec is sent to executors.
        for topic in self.topics:
            Consumer(
                topic,
                self.channel,
                nsqd_tcp_addresses=self.nsqd_tcp_addresses,
                lookupd_http_addresses=self.lookupd_http_addresses,
                msg_timeout=self.msg_timeout,
                **self.connection,
            )
        self._check_dead_letters()
        if self.max_messages is None and self.max_bytes is None and self.empty_for is None and self.deadline is None:
            raise OptionError(
                "max_messages, max_bytes, empty_for and deadline are all None; at least one of them has to end the "
                "partitions"
            )

    def consumer_keywords(self, *, with_lookup: bool = False) -> ConsumerKeywords:
        """Return the options of each ``Consumer`` of a partition, except ``max_in_flight``, which its plan has.

        Args:
            with_lookup: include those of requests to nsqlookupds, for a consumer on the driver. A partition has no use
                for them, and an executor need not have their files.
        """
        names = attrs.fields_dict(ConsumerOptions if with_lookup else ConnectionOptions)
        connection = {name: value for name, value in self.connection.items() if name in names}
        own = {"msg_timeout": self.msg_timeout, "output_buffer_timeout": self.output_buffer_timeout}
        return cast("ConsumerKeywords", own | connection)

    @property
    def output_buffer_timeout(self) -> float:
        """Seconds after which nsqd sends collected messages; a partition that takes nsqd for empty has to wait longer.

        The default is the lowest value that nsqd accepts by default. Messages that nsqd still collects when a partition
        ends would be delivered again, with one more attempt.
        """
        return cast("float", self.connection.get("output_buffer_timeout", 0.025))

    def lookup_options(self) -> LookupOptions:
        """Return the options of requests to nsqlookupds."""
        return lookup_options(self.connection)

    def _check_topics(self) -> None:
        _check_texts("topics", self.topics, "a topic, or a list of topics, each once")
        if not self.topics:
            raise OptionError("topics is empty; allowed is a topic, or a list of one or more")

    def _check_addresses(self) -> None:
        check_addresses(self.nsqd_tcp_addresses, self.lookupd_http_addresses)
        _check_texts("nsqd_http_addresses", self.nsqd_http_addresses, "a list of host:port or URLs, each once")
        for address in self.nsqd_http_addresses:
            http_name(address)
        if self.nsqd_http_addresses and len(self.nsqd_http_addresses) != len(self.nsqd_tcp_addresses):
            raise OptionError(
                f"nsqd_http_addresses has {len(self.nsqd_http_addresses)} addresses; allowed are none, or one for each "
                f"of the {len(self.nsqd_tcp_addresses)} of nsqd_tcp_addresses, in the same order"
            )

    def _check_dead_letters(self) -> None:
        if bool(self.max_attempts) != (self.dead_letter_topic is not None):
            raise OptionError(
                f"max_attempts is {self.max_attempts} and dead_letter_topic is {self.dead_letter_topic!r}; "
                "allowed is both or neither"
            )
        if self.dead_letter_topic is not None:
            encode_topic(self.dead_letter_topic)
            if self.dead_letter_topic in self.topics:
                raise OptionError(
                    f"dead_letter_topic is {self.dead_letter_topic!r}; allowed is a topic that is not consumed here"
                )
