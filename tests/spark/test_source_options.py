"""The options of reads: every wrong, missing or contradictory one is refused by its documented name."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from nsqkit import OptionError
from nsqkit.spark.option_text import TextOption
from nsqkit.spark.source_options import OPTIONS, SourceOptions, batch_options, check_options, stream_options

NEEDED = {"subscribe": "t", "channel": "c", "nsqd.addresses": "a:4150,b:4150", "walLocation": "/wal"}


def make(options: dict[str, Any], *without: str) -> dict[str, str]:
    """Return options as Spark passes them, with those that are required."""
    found = {**NEEDED, **options}
    return {name.lower(): str(value) for name, value in found.items() if name not in without}


def stream(*without: str, **options: Any) -> SourceOptions:
    return stream_options(make(options, *without))


def batch(*without: str, **options: Any) -> SourceOptions:
    return batch_options(make(options, *without))


def test_the_defaults_of_a_stream() -> None:
    options = stream()
    spec = options.spec
    assert (spec.topics, spec.channel, spec.nsqd_tcp_addresses) == (("t",), "c", ("a:4150", "b:4150"))
    assert (spec.partitions, spec.max_partitions, spec.max_in_flight) == (None, 64, 2500)
    assert (spec.max_messages, spec.max_bytes, spec.deadline) == (None, 256 << 20, 30.0)
    assert (spec.linger, spec.empty_for, spec.stop_after_linger) == (0.2, 0.2, True)
    assert (spec.msg_timeout, spec.fail_on_node_loss, spec.max_attempts) == (30.0, False, 0)
    assert (options.ack_mode, options.wal_location, options.wal_retain_batches) == ("wal", "/wal", 10)
    assert (options.dedup_horizon_ms, options.on_orphaned_wal) == (86_400_000, "fail")
    assert (options.depth_check, options.until, options.available_now_timeout_ms) == ("none", "", None)


def test_the_defaults_of_a_batch_read() -> None:
    options = batch()
    spec = options.spec
    assert (spec.max_messages, spec.max_bytes, spec.empty_for, spec.deadline) == (None, None, 1.0, None)
    assert (spec.stop_after_linger, spec.fail_on_node_loss) == (False, True)
    assert (options.until, options.on_orphaned_wal) == ("empty", "ignore")


def test_all_options_of_a_stream_arrive() -> None:
    options = stream(
        **{
            "subscribe": "t, u",
            "partitions": 8,
            "maxPartitions": 9,
            "maxInFlight": 5000,
            "nsqd.http.addresses": "a:1,b:1",
        },
        maxRecordsPerTrigger=200_000,
        maxBytesPerTrigger=1000,
        lingerMs=50,
        drainDeadlineMs=2000,
        msgTimeoutMs=5000,
        maxAttempts=5,
        deadLetterTopic="dead",
        walRetainBatches=3,
        dedupHorizonMs=1_000_000,
        onOrphanedWal="adopt",
        failOnNodeLoss="true",
        connectTimeoutMs=700,
        depthCheck="none",
        **{
            "availableNowTimeoutMs": 9000,
            "nsq.tlsV1": "true",
            "nsq.authSecret": "s3cret",
            "nsq.lookupdPollTimeout": "2",
        },
    )
    spec = options.spec
    assert (spec.topics, spec.partitions, spec.max_partitions, spec.max_in_flight) == (("t", "u"), 8, 9, 5000)
    assert (spec.max_messages, spec.max_bytes, spec.linger, spec.deadline) == (200_000, 1000, 0.05, 2.0)
    assert (spec.msg_timeout, spec.max_attempts, spec.dead_letter_topic) == (5.0, 5, "dead")
    assert (spec.fail_on_node_loss, spec.connect_timeout) == (True, 0.7)
    assert spec.nsqd_http_addresses == ("a:1", "b:1")
    assert spec.connection == {"tls_v1": True, "auth_secret": "s3cret", "lookupd_poll_timeout": 2.0}
    assert (options.wal_retain_batches, options.dedup_horizon_ms, options.on_orphaned_wal) == (3, 1_000_000, "adopt")
    assert (options.depth_check, options.available_now_timeout_ms) == ("none", 9000)


def test_all_options_of_a_batch_read_arrive() -> None:
    options = batch(
        "nsqd.addresses",
        **{"lookupd.addresses": "l:4161", "until": "count", "maxRecords": 7, "deadlineMs": 100, "waitInFlight": "true"},
    )
    assert (options.until, options.depth_check, options.spec.wait_in_flight) == ("count", "http", True)
    assert (options.spec.max_messages, options.spec.deadline, options.spec.empty_for) == (7, 0.1, None)
    assert options.spec.lookupd_http_addresses == ("l:4161",)
    assert batch(until="deadline", deadlineMs=100).spec.empty_for is None
    assert batch(emptyForMs=300, maxRecords=7).spec.empty_for == 0.3


@pytest.mark.parametrize("mode", ["commit", "receive"])
def test_other_modes_need_no_location(mode: str) -> None:
    assert stream("walLocation", ackMode=mode).wal_location == ""


def test_only_a_channel_that_always_has_a_consumer_may_be_ephemeral() -> None:
    assert stream("walLocation", channel="c#ephemeral", ackMode="commit").spec.channel == "c#ephemeral"
    with pytest.raises(OptionError, match="channel is 'c#ephemeral'; allowed is a channel that nsqd keeps"):
        stream("walLocation", channel="c#ephemeral", ackMode="receive")


@pytest.mark.parametrize(("extra", "found"), [({}, "http"), ({"depthCheck": "none"}, "none")])
def test_depths_are_checked_if_http_addresses_are_known(extra: dict[str, str], found: str) -> None:
    assert stream("nsqd.addresses", **{"lookupd.addresses": "l:1"}, **extra).depth_check == found
    assert stream(**{"nsqd.http.addresses": "a:1,b:1"}, **extra).depth_check == found


@pytest.mark.parametrize(
    ("without", "options", "sentence"),
    [
        (["subscribe"], {}, "subscribe is not set; allowed are one or more topics"),
        ([], {"subscribe": " , "}, "subscribe is not set"),
        ([], {"subscribe": "t,t"}, "subscribe is 't,t'; allowed is each topic once"),
        ([], {"subscribe": "a b"}, "topic name 'a b' is not valid"),
        ([], {"topic": "u"}, "subscribe or topic is set twice"),
        (["channel"], {}, "channel is not set"),
        ([], {"channel": "a b"}, "channel name 'a b' is not valid"),
        (["nsqd.addresses"], {}, "nsqd.addresses and lookupd.addresses are both empty; allowed is exactly one"),
        ([], {"lookupd.addresses": "l:1"}, "nsqd.addresses and lookupd.addresses are both set"),
        ([], {"nsqd.addresses": "a"}, "address 'a' is not host:port"),
        ([], {"nsqd.addresses": "a:1,a:1"}, "nsqd.addresses has one text twice"),
        (
            [],
            {"nsqd.http.addresses": "a:1"},
            "nsqd.http.addresses has 1 addresses; allowed are none, or one for each",
        ),
        (["nsqd.addresses"], {"lookupd.addresses": "l"}, "address 'l' is not host:port, a URL"),
        ([], {"partitions": 0}, "partitions is '0'; allowed is a whole number from 1 to 1024"),
        ([], {"maxPartitions": "x"}, "maxPartitions is 'x'"),
        ([], {"maxInFlight": 0}, "maxInFlight is '0'; allowed is a whole number from 1 to 1000000"),
        ([], {"maxRecordsPerTrigger": -1}, "maxRecordsPerTrigger is '-1'"),
        ([], {"maxBytesPerTrigger": "256MB"}, "maxBytesPerTrigger is '256MB'"),
        ([], {"lingerMs": 0}, "lingerMs is '0'"),
        ([], {"drainDeadlineMs": 0}, "drainDeadlineMs is '0'"),
        ([], {"msgTimeoutMs": 999}, "msgTimeoutMs is '999'; allowed is a whole number of milliseconds from 1000"),
        ([], {"maxAttempts": 65_536}, "maxAttempts is '65536'"),
        ([], {"maxAttempts": 5}, "maxAttempts is 5 and deadLetterTopic is None; allowed is both or neither"),
        ([], {"deadLetterTopic": "d"}, "maxAttempts is 0 and deadLetterTopic is 'd'"),
        ([], {"maxAttempts": 5, "deadLetterTopic": "t"}, "deadLetterTopic is 't'; allowed is a topic that is not"),
        ([], {"ackMode": "yield"}, "ackMode is 'yield'; allowed is wal or commit or receive"),
        (["walLocation"], {}, "walLocation is not set; allowed is a directory"),
        ([], {"walLocation": " "}, "walLocation is not set"),
        ([], {"ackMode": "commit"}, "walLocation is an option of ackMode=wal; it has no effect in ackMode=commit"),
        (["walLocation"], {"ackMode": "receive", "onOrphanedWal": "fail"}, "onOrphanedWal is an option of ackMode=wal"),
        (
            ["walLocation"],
            {"ackMode": "commit", "failOnNodeLoss": "true"},
            "failOnNodeLoss is an option of ackMode=wal and ackMode=receive; it has no effect in ackMode=commit",
        ),
        (["walLocation"], {"ackMode": "commit", "drainDeadlineMs": 5}, "drainDeadlineMs is an option of ackMode=wal"),
        (["walLocation"], {"ackMode": "commit", "maxPartitions": 5}, "maxPartitions is an option of ackMode=wal"),
        ([], {"walRetainBatches": 0}, "walRetainBatches is '0'"),
        (
            [],
            {"dedupHorizonMs": 900_000},
            "dedupHorizonMs is '900000'; allowed is a whole number of milliseconds from 9",
        ),
        ([], {"dedupHorizonMs": 960_000, "msgTimeoutMs": 960_000}, "dedupHorizonMs is 960000; allowed is more than"),
        ([], {"onOrphanedWal": "drop"}, "onOrphanedWal is 'drop'; allowed is fail or adopt or ignore"),
        ([], {"failOnNodeLoss": "maybe"}, "failOnNodeLoss is 'maybe'; allowed is true or false"),
        ([], {"depthCheck": "tcp"}, "depthCheck is 'tcp'; allowed is http or none"),
        ([], {"depthCheck": "http"}, "depthCheck is 'http'; allowed with nsqd.addresses is http only together with"),
        ([], {"waitInFlight": "true"}, "waitInFlight is true; allowed is true only with depthCheck=http"),
        ([], {"availableNowTimeoutMs": 0}, "availableNowTimeoutMs is '0'"),
        ([], {"nsq.tlsCert": "c.pem"}, "nsq.tlsCert is 'c.pem'; allowed is to set it only with nsq.tlsV1"),
        ([], {"nsq.deflate": "true", "nsq.snappy": "true"}, "nsq.snappy and nsq.deflate are both True"),
        ([], {"nsq.heartbeatInterval": "61"}, "nsq.heartbeatInterval is '61'"),
        ([], {"nsq.maxAttempts": "5"}, "there is no option 'nsq.maxattempts'; did you mean 'maxAttempts'?"),
        ([], {"touchRatio": "0.5"}, "there is no option 'touchratio'"),
        ([], {"path": "/x"}, "there is no option 'path'; there are subscribe, topic, channel,"),
        ([], {"until": "empty"}, "until is an option of a batch read; it has no effect in readStream"),
    ],
)
def test_a_wrong_option_of_a_stream_is_refused(without: list[str], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        stream_options(make(options, *without))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ackMode": "commit"}, "ackMode is 'commit'; allowed for a batch read is wal or receive"),
        (
            {"maxRecordsPerTrigger": 5},
            "maxRecordsPerTrigger is an option of readStream; it has no effect in a",
        ),
        ({"walRetainBatches": 5}, "walRetainBatches is an option of readStream"),
        ({"availableNowTimeoutMs": 5}, "availableNowTimeoutMs is an option of readStream"),
        ({"until": "later"}, "until is 'later'; allowed is empty or count or deadline"),
        ({"until": "count"}, "until is 'count' and maxRecords is not set; allowed is until=count only with maxRecords"),
        ({"until": "count", "maxRecords": 5}, "until is 'count' and deadlineMs is not set"),
        ({"until": "deadline"}, "until is 'deadline' and deadlineMs is not set"),
        ({"until": "deadline", "deadlineMs": 5, "emptyForMs": 5}, "emptyForMs is set and until is 'deadline'"),
        ({"maxRecords": 0}, "maxRecords is '0'"),
        ({"deadlineMs": 0}, "deadlineMs is '0'"),
        ({"emptyForMs": 0}, "emptyForMs is '0'"),
        ({"subscribe": "a b"}, "topic name 'a b' is not valid"),
    ],
)
def test_a_wrong_option_of_a_batch_read_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        batch_options(make(options))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{}, {"until": "deadline", "deadlineMs": 5}, {"maxRecordsPerTrigger": 5}, {"maxRecords": 5}],
)
def test_load_accepts_the_options_of_both_kinds_of_read(options: dict[str, Any]) -> None:
    check_options(make(options))


@pytest.mark.parametrize("options", [{"until": "later"}, {"until": "deadline"}, {"lingerMs": 0}, {"subscribe": "a b"}])
def test_load_refuses_options_that_are_wrong_for_both_kinds(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        check_options(make(options))


def test_load_refuses_options_of_both_kinds_together() -> None:
    with pytest.raises(OptionError, match="maxRecordsPerTrigger is an option of readStream"):
        check_options(make({"until": "empty", "maxRecordsPerTrigger": 5}))


def test_the_options_pickle_and_show_no_secret() -> None:
    options = stream(
        "nsqd.addresses",
        **{
            "lookupd.addresses": "http://u:s3cret@l:1",
            "nsq.authSecret": "s3cret",
            "nsq.lookupdAuthorization": "s3cret",
        },
        walLocation="s3://u:s3cret@bucket/wal?key=s3cret",
    )
    assert pickle.loads(pickle.dumps(options)) == options
    assert "s3cret" not in repr(options)
    assert "'s3://bucket/wal'" in repr(options)


@pytest.mark.parametrize(
    "options",
    [
        {"nsq.authSecret": "s3cret\n"},
        {"nsq.authSecret": "s3cret", "lingerMs": 0},
        {"nsq.authSecret": "s3cret", "nsq.tlsCert": "c"},
        {"nsq.authSecrets": "s3cret"},
        {"lookupd.addresses": "http://u:s3cret@l:1"},
        {"nsqd.http.addresses": "http://u:s3cret@l:1"},
        {"nsqd.http.addresses": "http://u:s3cret@l:1,http://u:s3cret@l:x"},
    ],
)
def test_no_error_shows_a_secret(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        stream_options(make(options))
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_default_of_every_option_is_allowed(option: TextOption) -> None:
    assert option.default is None or option.option.accepts(option.default)
