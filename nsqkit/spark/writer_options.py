"""The options and columns of a write by ``format("nsq")``, checked on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import attrs

from nsqkit.client.options import ConnectionOptions
from nsqkit.errors import OptionError
from nsqkit.lookup.options import LookupOptions
from nsqkit.options.checks import make_options
from nsqkit.options.fields import whole, word
from nsqkit.producer import Producer
from nsqkit.producer.options import ProducerKeywords, ProducerOptions
from nsqkit.spark.option_text import (
    NSQ_OPTIONS,
    TextOption,
    connection_of,
    list_option,
    milliseconds_option,
    read_options,
    text_option,
    whole_option,
    with_documented_names,
    word_option,
)
from nsqkit.spark.options import check_addresses, check_connection, lookup_options, show_addresses, show_connection
from nsqkit.wire.names import encode_topic

PUBLISH_ATTEMPTS: Final = 3
"""How often a command is sent. A write is at least once, and a task that fails repeats more than one command."""

CONNECT_TIMEOUT: Final = 10.0
"""Seconds that a command waits while no nsqd is connected, as the default of ``ConsumerSpec``."""

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "key": ("binary", "string"),
    "deferMs": ("tinyint", "smallint", "int", "bigint"),
}
"""The columns of a write, and the types that each may have."""


MPUB_BATCH_MAX: Final = 100_000
DEFER_MS_MAX: Final = 86_400_000
MPUB_BYTES_LIMITS: Final = (1 << 10, 1 << 30)
PARTITION_BY: Final = ("roundRobin", "key")


@attrs.frozen(kw_only=True)
class WriterOptions:
    """The options of a write.

    Attributes:
        topic: the topic of rows without their own; None if each row has one.
        nsqd_tcp_addresses: ``host:port`` of each nsqd, as the executors reach it.
        lookupd_http_addresses: ``host:port`` or URL of each nsqlookupd, instead of ``nsqd_tcp_addresses``. Rows go to
            all nsqds that are registered there.
        mpub_batch: the most messages of a command, 1 to 100,000; 1000.
        mpub_bytes: the most bytes of a command with several messages, 1 KiB to ``max_body_size``; 1 MiB.
        partition_by: which nsqd gets a command: each in turn with ``roundRobin``, the same one for the same key with
            ``key``. A row without a key goes to each in turn.
        defer_ms: milliseconds until rows without their own ``deferMs`` are delivered, 0 to ``max_defer_timeout``; 0.
        connection: options of the connections and of the requests to nsqlookupds, by the keywords of ``Producer``.

    Raises:
        OptionError: a value that cannot be used.
    """

    topic: str | None = None
    nsqd_tcp_addresses: tuple[str, ...] = ()
    lookupd_http_addresses: tuple[str, ...] = attrs.field(default=(), repr=show_addresses)
    mpub_batch: int = whole(1000, 1, MPUB_BATCH_MAX)
    mpub_bytes: int = whole(1 << 20, *MPUB_BYTES_LIMITS)
    partition_by: str = word("roundRobin", PARTITION_BY)
    defer_ms: int = whole(0, 0, DEFER_MS_MAX)
    connection: Mapping[str, Any] = attrs.field(factory=dict, hash=False, repr=show_connection)

    def __attrs_post_init__(self) -> None:
        if self.topic is not None:
            encode_topic(self.topic)
        check_connection(self.connection)
        check_addresses(self.nsqd_tcp_addresses, self.lookupd_http_addresses)
        self.lookup_options().daemons(self.lookupd_http_addresses)
        # The producer checks addresses and options, before they are sent to executors.
        Producer(*(self.nsqd_tcp_addresses or ("localhost:4150",)), **self.producer_keywords())
        if self.mpub_bytes > self.producer_options.max_body_size:
            raise OptionError(
                f"mpub_bytes is {self.mpub_bytes}; allowed is at most max_body_size, "
                f"{self.producer_options.max_body_size}"
            )
        if self.defer_ms > self.defer_ms_max:
            raise OptionError(f"defer_ms is {self.defer_ms}; allowed is 0 to {self.defer_ms_max}")

    @property
    def producer_options(self) -> ProducerOptions:
        """The options of each producer."""
        return make_options(ProducerOptions, dict(self.producer_keywords()))

    @property
    def defer_ms_max(self) -> int:
        """The longest delay of a row in milliseconds: nsqd's default of ``--max-req-timeout``."""
        return round(self.producer_options.max_defer_timeout * 1000)

    def producer_keywords(self) -> ProducerKeywords:
        """Return the options of each ``Producer``."""
        names = attrs.fields_dict(ConnectionOptions)
        keywords = {
            "policy": "by-key",  # without a key, each nsqd in turn
            "publish_attempts": PUBLISH_ATTEMPTS,
            "connect_timeout": CONNECT_TIMEOUT,
            "end_on_permanent_error": True,  # a refused secret would be refused in each attempt of the task
            **{name: value for name, value in self.connection.items() if name in names},
        }
        return cast("ProducerKeywords", keywords)

    def lookup_options(self) -> LookupOptions:
        """Return the options of requests to nsqlookupds."""
        return lookup_options(self.connection)


def check_columns(types: Mapping[str, str], options: WriterOptions) -> None:
    """Raise OptionError unless a table with these columns can be published.

    Args:
        types: Spark's name for the type of each column, such as ``binary``.
        options: the options of the write.
    """
    for name, type_ in types.items():
        if name not in COLUMNS:
            raise OptionError(f"the column {name!r} cannot be published; allowed are {', '.join(COLUMNS)}")
        if type_ not in COLUMNS[name]:
            raise OptionError(f"the column {name} is {type_}; allowed is {' or '.join(COLUMNS[name])}")
    if "body" not in types:
        raise OptionError("there is no column body; required is one, binary or string")
    if "topic" not in types and options.topic is None:
        raise OptionError("there is neither a column topic nor an option topic; required is one of them")
    if "key" not in types and options.partition_by == "key":
        raise OptionError("partitionBy is 'key', and there is no column key; allowed is it only with that column")


OPTIONS: Final[tuple[TextOption, ...]] = (
    text_option("topic", None, "The topic of rows without a column `topic`.", field="topic"),
    list_option(
        "nsqd.addresses",
        "`host:port` of each nsqd, as the executors reach it; exactly one of both address options is set.",
        expected="a list of host:port, with commas",
        field="nsqd_tcp_addresses",
    ),
    list_option(
        "lookupd.addresses",
        "`host:port` or URL of each nsqlookupd; rows go to all nsqds that are registered there.",
        expected="a list of host:port or URLs, with commas",
        hidden=True,
        field="lookupd_http_addresses",
    ),
    whole_option("mpubBatch", 1000, 1, MPUB_BATCH_MAX, "The most messages of a command.", field="mpub_batch"),
    whole_option(
        "mpubBytes",
        1 << 20,
        *MPUB_BYTES_LIMITS,
        "The most bytes of a command with several messages; at most `nsq.maxBodySize`.",
        field="mpub_bytes",
    ),
    word_option(
        "partitionBy",
        "roundRobin",
        PARTITION_BY,
        "The nsqd of a command: each in turn, or with `key` the same one for the same value of the column `key`.",
        field="partition_by",
    ),
    milliseconds_option(
        "deferMs",
        0,
        0,
        "The time until rows without a column `deferMs` are delivered; nsqd allows 1 hour by default.",
        field="defer_ms",
    ),
    *NSQ_OPTIONS,
)
"""The options of ``format("nsq")`` for a write, besides those of a ``WriterOptions``'s connection."""


def read_writer_options(options: Mapping[str, str]) -> WriterOptions:
    """Return the options of a write from Spark's map.

    Raises:
        OptionError: an option is unknown, wrong, missing or contradicts another one.
    """
    values = read_options(options, OPTIONS, ignored=("checkpointLocation", "queryName"))
    own = {option.field: values[option.name] for option in OPTIONS if option.name in values}
    connection = connection_of(values)
    try:
        return WriterOptions(
            **{name: value for name, value in own.items() if name not in connection}, connection=connection
        )
    except OptionError as error:
        raise with_documented_names(error, OPTIONS) from None
