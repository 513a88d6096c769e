from __future__ import annotations

import pickle
from typing import Any

import pytest

from nsqkit import OptionError
from nsqkit.spark.writer_options import WriterOptions, check_columns


def make_options(**options: Any) -> WriterOptions:
    return WriterOptions(**{"topic": "t", "nsqd_tcp_addresses": ("a:4150",), **options})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"topic": "a b"}, "topic name 'a b' is not valid"),
        ({"nsqd_tcp_addresses": ()}, "are both empty; allowed is exactly one of them"),
        ({"lookupd_http_addresses": ("a:4161",)}, "are both set; allowed is exactly one of them"),
        ({"nsqd_tcp_addresses": ("a",)}, "address 'a'"),
        ({"nsqd_tcp_addresses": (), "lookupd_http_addresses": ("ftp://a:1",)}, "ftp://a:1"),
        ({"mpub_batch": 0}, "mpub_batch is 0; allowed is"),
        ({"mpub_bytes": 1}, "mpub_bytes is 1; allowed is"),
        ({"mpub_bytes": 6 << 20}, "mpub_bytes is 6291456; allowed is at most max_body_size, 5242880"),
        ({"partition_by": "hash"}, "partition_by is 'hash'; allowed is 'roundRobin' or 'key'"),
        ({"defer_ms": -1}, "defer_ms is -1; allowed is"),
        ({"defer_ms": 3_600_001}, "defer_ms is 3600001; allowed is 0 to 3600000"),
        ({"connection": {"snapy": True}}, "did you mean 'snappy'"),
        ({"connection": {"tls_v1": 1}}, "tls_v1 is 1; allowed is True or False"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], expected: str):
    with pytest.raises(OptionError) as caught:
        make_options(**options)
    assert expected in str(caught.value)


def test_options_pickle():
    options = make_options(connection={"auth_secret": "hush"}, defer_ms=5)
    assert pickle.loads(pickle.dumps(options)) == options


def test_secrets_are_in_no_repr():
    options = make_options(
        nsqd_tcp_addresses=(),
        lookupd_http_addresses=("http://user:hush@a:4161",),
        connection={"auth_secret": "hush", "lookupd_authorization": "hush", "client_id": "shown"},
    )
    assert "hush" not in repr(options)
    assert "shown" in repr(options)


def test_a_producer_gets_the_options_of_connections_and_no_others():
    options = make_options(connection={"lookupd_poll_timeout": 5, "client_id": "spark"})
    assert options.producer_options.client_id == "spark"
    assert options.lookup_options().lookupd_poll_timeout == 5


@pytest.mark.parametrize("body", ["binary", "string"])
@pytest.mark.parametrize("defer_ms", ["tinyint", "smallint", "int", "bigint"])
def test_a_table_may_have_all_columns(body: str, defer_ms: str):
    check_columns({"deferMs": defer_ms, "key": body, "topic": "string", "body": body}, make_options(topic=None))


@pytest.mark.parametrize(
    ("types", "options", "expected"),
    [
        ({"value": "binary"}, {}, "the column 'value' cannot be published; allowed are body, topic, key, deferMs"),
        ({"topic": "string"}, {}, "there is no column body; required is one, binary or string"),
        ({"body": "int"}, {}, "the column body is int; allowed is binary or string"),
        ({"body": "binary", "topic": "binary"}, {}, "the column topic is binary; allowed is string"),
        (
            {"body": "binary", "deferMs": "string"},
            {},
            "the column deferMs is string; allowed is tinyint or smallint or int or bigint",
        ),
        (
            {"body": "binary"},
            {"topic": None},
            "there is neither a column topic nor an option topic; required is one of them",
        ),
        (
            {"body": "binary"},
            {"partition_by": "key"},
            "partitionBy is 'key', and there is no column key; allowed is it only with that column",
        ),
    ],
)
def test_a_table_that_cannot_be_published_is_refused(types: dict[str, str], options: dict[str, Any], expected: str):
    with pytest.raises(OptionError) as caught:
        check_columns(types, make_options(**options))
    assert str(caught.value) == expected
