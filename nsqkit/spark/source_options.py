"""The options of ``format("nsq")`` for reads.

``OPTIONS`` is the table of all of them: the documentation has the same one, and a test compares the two. A read is a
batch or a stream, which Spark's ``load()`` does not say, so ``check_options`` checks them for the kind of read that
they are for, and ``batch_options`` or ``stream_options`` read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import attrs

from nsqkit.errors import OptionError
from nsqkit.spark.option_text import (
    DAY_MS,
    NSQ_OPTIONS,
    connection_of,
    list_option,
    milliseconds_option,
    read_options,
    switch_option,
    text_option,
    whole_option,
    with_documented_names,
    word_option,
)
from nsqkit.spark.options import PARTITIONS_MAX, ConsumerSpec
from nsqkit.spark.slots.fsspec_store import show_location
from nsqkit.spark.slots.maintenance import OrphanPolicy

AckMode: TypeAlias = Literal["wal", "commit", "receive"]

DEDUP_HORIZON_MIN_MS: Final = 16 * 60_000
"""nsqd delivers a message again at most 15 minutes after its last delivery (``--max-msg-timeout``), by default."""

ROWS_MAX: Final = 1 << 62

OPTIONS: Final = (
    list_option(
        "subscribe",
        "The topics, with commas between them. Required.",
        expected="one or more topics with commas between them",
        aliases=("topic",),
    ),
    text_option(
        "channel", None, "The channel of each topic. Required. Only with `ackMode=commit` may it be ephemeral."
    ),
    list_option(
        "nsqd.addresses",
        "`host:port` of each nsqd, as the executors reach it. This or `lookupd.addresses` is required.",
        expected="addresses with commas between them",
        field="nsqd_tcp_addresses",
    ),
    list_option(
        "lookupd.addresses",
        "`host:port` or URL of each nsqlookupd, which lists the nsqds at each batch.",
        expected="addresses with commas between them",
        hidden=True,
        field="lookupd_http_addresses",
    ),
    list_option(
        "nsqd.http.addresses",
        "`host:port` or URL for the statistics of each nsqd of `nsqd.addresses`, in the same order. An nsqlookupd "
        "lists them itself.",
        expected="addresses with commas between them",
        hidden=True,
        field="nsqd_http_addresses",
    ),
    whole_option(
        "partitions",
        None,
        1,
        PARTITIONS_MAX,
        "Tasks of a batch. By default one for each nsqd and topic, from 2 to `maxPartitions`.",
    ),
    whole_option(
        "maxPartitions", 64, 1, PARTITIONS_MAX, "The most tasks if `partitions` is not set. Not with `ackMode=commit`."
    ),
    whole_option(
        "maxInFlight",
        2500,
        1,
        1_000_000,
        "Messages that may be delivered and not finished at a time, over all connections. If there are more "
        "connections, they take turns from batch to batch; a batch read refuses that.",
        field="max_in_flight",
    ),
    whole_option(
        "maxRecordsPerTrigger", None, 1, ROWS_MAX, "Rows of a batch at most.", reads="stream", field="max_messages"
    ),
    whole_option(
        "maxBytesPerTrigger",
        256 << 20,
        1,
        ROWS_MAX,
        "Bytes of bodies after which a batch ends.",
        reads="stream",
        field="max_bytes",
    ),
    milliseconds_option(
        "lingerMs",
        200,
        1,
        "How long a task collects messages that arrive slowly, before their rows are stored. In a stream the task then "
        "ends.",
    ),
    milliseconds_option(
        "drainDeadlineMs",
        30_000,
        1,
        "How long a task receives at most. Not with `ackMode=commit`.",
        reads="stream",
    ),
    milliseconds_option(
        "msgTimeoutMs",
        30_000,
        1000,
        "After how long an nsqd delivers the messages of a dead executor again. A task touches the messages that it "
        "holds.",
        field="msg_timeout",
    ),
    whole_option(
        "maxAttempts",
        0,
        0,
        65_535,
        "Deliveries after which a message is published to `deadLetterTopic` and finished, and is no row; 0 for no "
        "limit.",
        field="max_attempts",
    ),
    text_option(
        "deadLetterTopic", None, "The topic of these messages. Required with `maxAttempts`.", field="dead_letter_topic"
    ),
    word_option(
        "ackMode",
        "wal",
        ("wal", "commit", "receive"),
        "When a message is finished: when its row is durable in `walLocation`, when the batch is in the checkpoint "
        "(streams only), or when it is received, which may lose messages.",
    ),
    text_option(
        "walLocation",
        None,
        "A directory that the driver and all executors share, or the URL of an object store. Required with "
        "`ackMode=wal`.",
    ),
    whole_option(
        "walRetainBatches", 10, 1, 1_000_000, "Batches before the last one that stay in the WAL.", reads="stream"
    ),
    milliseconds_option(
        "dedupHorizonMs",
        DAY_MS,
        DEDUP_HORIZON_MIN_MS,
        "How long a message whose FIN has no known outcome is recognized if it is delivered again. It is more than "
        "nsqd's `--max-msg-timeout`.",
        high=30 * DAY_MS,
        reads="stream",
    ),
    word_option(
        "onOrphanedWal",
        None,
        ("fail", "adopt", "ignore"),
        "If `walLocation` has rows of the same topics and channel, a query without a checkpoint, or a new batch read, "
        "refuses to start, takes them into its first batch, or leaves them. By default `fail` for a stream and "
        "`ignore` for a batch read.",
    ),
    switch_option(
        "failOnNodeLoss",
        None,
        "Fail a task that does not reach one of its nsqds, instead of continuing without. By default `false` for a "
        "stream and `true` for a batch read. Not with `ackMode=commit`.",
    ),
    milliseconds_option(
        "connectTimeoutMs",
        10_000,
        1,
        "How long a task waits for its nsqds at its start, before it fails or continues without them.",
        field="connect_timeout",
    ),
    word_option(
        "depthCheck",
        None,
        ("http", "none"),
        "Whether the depths of the channel are queried before each batch, which saves empty batches. By default `http` "
        "if there are HTTP addresses.",
    ),
    switch_option(
        "waitInFlight",
        False,
        "A batch read, and a stream with `availableNow`, wait for messages that are in flight to other consumers. It "
        "requires `depthCheck=http`.",
    ),
    milliseconds_option(
        "availableNowTimeoutMs",
        None,
        1,
        "After how long a stream with `availableNow` begins no further batch. By default there is no limit.",
        reads="stream",
    ),
    word_option(
        "until",
        "empty",
        ("empty", "count", "deadline"),
        "The end of a batch read: no message for `emptyForMs`, `maxRecords` rows (then `deadlineMs` is required, too, "
        "since a task waits for its share), or `deadlineMs`.",
        reads="batch",
    ),
    milliseconds_option(
        "emptyForMs", 1000, 1, "How long no message has arrived when a task with `until=empty` ends.", reads="batch"
    ),
    whole_option("maxRecords", None, 1, ROWS_MAX, "Rows of a batch read at most.", reads="batch", field="max_messages"),
    milliseconds_option("deadlineMs", None, 1, "How long a task of a batch read receives at most.", reads="batch"),
    *NSQ_OPTIONS,
)
"""All options of reads."""

_OF_WAL: Final = ("walLocation", "walRetainBatches", "dedupHorizonMs", "onOrphanedWal")
_OF_TASKS: Final = ("maxPartitions", "drainDeadlineMs", "failOnNodeLoss")
"""Options of tasks that receive; with ``ackMode=commit`` the driver does."""

_BATCH_ONLY: Final = {option.name for option in OPTIONS if option.reads == "batch"}
_STREAM_ONLY: Final = {option.name for option in OPTIONS if option.reads == "stream"}


@attrs.frozen(kw_only=True)
class SourceOptions:
    """The options of one read, checked.

    Attributes:
        spec: the consumer of its partitions. In a stream, ``max_messages`` and ``max_bytes`` are for each batch.
        ack_mode: ``wal``, ``commit`` or ``receive``.
        wal_location: where the WAL is; empty if ``ack_mode`` is not ``wal``.
        wal_retain_batches: batches before the last one that stay there.
        dedup_horizon_ms: how long a message whose FIN has no known outcome is recognized, ms.
        on_orphaned_wal: ``fail``, ``adopt`` or ``ignore``.
        depth_check: ``http`` or ``none``.
        until: the end of a batch read: ``empty``, ``count`` or ``deadline``; empty for a stream.
        available_now_timeout_ms: how long a run with ``availableNow`` begins batches, ms; None for no limit.
    """

    spec: ConsumerSpec
    ack_mode: AckMode
    wal_location: str = attrs.field(repr=show_location)
    wal_retain_batches: int
    dedup_horizon_ms: int
    on_orphaned_wal: OrphanPolicy
    depth_check: Literal["http", "none"]
    until: Literal["", "empty", "count", "deadline"]
    available_now_timeout_ms: int | None


def check_options(options: Mapping[str, str]) -> None:
    """Check the options of a read before it is known whether it is a batch or a stream.

    Raises:
        OptionError: see ``batch_options`` and ``stream_options``.
    """
    given = read_options(options, OPTIONS).keys()
    (batch_options if given & _BATCH_ONLY else stream_options)(options)


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of a batch read.

    Args:
        options: Spark's map: keys in any case, values as texts.

    Raises:
        OptionError: an option is unknown, missing, wrong, for streams only, or contradicts another one.
    """
    given = read_options(options, OPTIONS)
    _refuse_among(given, _STREAM_ONLY, "readStream", "a batch read")
    if given.get("ackMode") == "commit":
        raise OptionError("ackMode is 'commit'; allowed for a batch read is wal or receive, commit is for readStream")
    values = _with_defaults(given)
    until = values["until"]
    if until != "empty" and "emptyForMs" in given:
        raise OptionError(f"emptyForMs is set and until is {until!r}; allowed is emptyForMs only with until=empty")
    required = {"empty": (), "count": ("maxRecords", "deadlineMs"), "deadline": ("deadlineMs",)}
    for name in required[until]:
        if name not in given:
            raise OptionError(f"until is {until!r} and {name} is not set; allowed is until={until} only with {name}")
    return _source_options(
        given,
        values,
        until=until,
        on_orphaned_wal="ignore",
        fail_on_node_loss=True,
        max_messages=values["maxRecords"],
        empty_for=values["emptyForMs"] / 1000 if until == "empty" else None,
        deadline=_seconds(values["deadlineMs"]),
    )


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of a stream; arguments and errors as ``batch_options``."""
    given = read_options(options, OPTIONS)
    _refuse_among(given, _BATCH_ONLY, "a batch read", "readStream")
    values = _with_defaults(given)
    if values["dedupHorizonMs"] <= values["msgTimeoutMs"]:
        raise OptionError(
            f"dedupHorizonMs is {values['dedupHorizonMs']}; allowed is more than msgTimeoutMs, {values['msgTimeoutMs']}"
        )
    linger = values["lingerMs"] / 1000
    return _source_options(
        given,
        values,
        until="",
        on_orphaned_wal="fail",
        fail_on_node_loss=False,
        max_messages=values["maxRecordsPerTrigger"],
        max_bytes=values["maxBytesPerTrigger"],
        # A task that receives nothing need not wait for longer than for a slow message.
        empty_for=linger,
        stop_after_linger=True,
        deadline=values["drainDeadlineMs"] / 1000,
    )


def _source_options(
    given: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    until: str,
    on_orphaned_wal: OrphanPolicy,
    fail_on_node_loss: bool,
    **of_kind: Any,
) -> SourceOptions:
    """Return the options; ``given`` are those that are set, ``values`` has the defaults of the others."""
    _check_required(given, values)
    depth_check = _depth_check(values)
    fails = values["failOnNodeLoss"]
    try:
        spec = ConsumerSpec(
            topics=values["subscribe"],
            channel=values["channel"],
            nsqd_tcp_addresses=values["nsqd.addresses"],
            lookupd_http_addresses=values["lookupd.addresses"],
            nsqd_http_addresses=values["nsqd.http.addresses"],
            partitions=values["partitions"],
            max_partitions=values["maxPartitions"],
            max_in_flight=values["maxInFlight"],
            linger=values["lingerMs"] / 1000,
            msg_timeout=values["msgTimeoutMs"] / 1000,
            connect_timeout=values["connectTimeoutMs"] / 1000,
            fail_on_node_loss=fail_on_node_loss if fails is None else fails,
            max_attempts=values["maxAttempts"],
            dead_letter_topic=values["deadLetterTopic"],
            wait_in_flight=values["waitInFlight"],
            connection=connection_of(given),
            **of_kind,
        )
    except OptionError as error:
        raise with_documented_names(error, OPTIONS) from None
    return SourceOptions(
        spec=spec,
        ack_mode=values["ackMode"],
        wal_location=values["walLocation"] or "",
        wal_retain_batches=values["walRetainBatches"],
        dedup_horizon_ms=values["dedupHorizonMs"],
        on_orphaned_wal=values["onOrphanedWal"] or on_orphaned_wal,
        depth_check=depth_check,
        until=cast("Any", until),
        available_now_timeout_ms=values["availableNowTimeoutMs"],
    )


def _with_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    return {option.name: given.get(option.name, option.default) for option in OPTIONS}


def _refuse_among(given: Mapping[str, Any], names: set[str], where: str, here: str) -> None:
    for name in given:
        if name in names:
            raise OptionError(f"{name} is an option of {where}; it has no effect in {here}")


def _check_required(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    if not values["subscribe"]:
        raise OptionError("subscribe is not set; allowed are one or more topics with commas between them")
    if len(set(values["subscribe"])) < len(values["subscribe"]):
        raise OptionError(f"subscribe is {','.join(values['subscribe'])!r}; allowed is each topic once")
    if values["channel"] is None:
        raise OptionError("channel is not set; allowed is the name of a channel")
    if bool(values["nsqd.addresses"]) == bool(values["lookupd.addresses"]):
        both = "set" if values["nsqd.addresses"] else "empty"
        raise OptionError(f"nsqd.addresses and lookupd.addresses are both {both}; allowed is exactly one of them")
    mode = values["ackMode"]
    if mode != "commit" and values["channel"].endswith("#ephemeral"):
        raise OptionError(
            f"channel is {values['channel']!r}; allowed is a channel that nsqd keeps between batches, when it has no "
            "consumer; with ackMode=commit it always has one"
        )
    if mode != "wal":
        _refuse_among(given, set(_OF_WAL), "ackMode=wal", f"ackMode={mode}")
        if mode == "commit":
            _refuse_among(given, set(_OF_TASKS), "ackMode=wal and ackMode=receive", "ackMode=commit")
    elif not (values["walLocation"] or "").strip():
        raise OptionError(
            "walLocation is not set; allowed is a directory that the driver and all executors share, or the URL of an "
            "object store; ackMode=commit and ackMode=receive need none"
        )


def _depth_check(values: Mapping[str, Any]) -> Literal["http", "none"]:
    has_http = bool(values["lookupd.addresses"] or values["nsqd.http.addresses"])
    asked = values["depthCheck"]
    if asked == "http" and not has_http:
        raise OptionError(
            "depthCheck is 'http'; allowed with nsqd.addresses is http only together with nsqd.http.addresses"
        )
    found: Literal["http", "none"] = "none" if asked == "none" or not has_http else "http"
    if values["waitInFlight"] and found == "none":
        raise OptionError(
            "waitInFlight is true; allowed is true only with depthCheck=http, which requires lookupd.addresses or "
            "nsqd.http.addresses"
        )
    return found


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
