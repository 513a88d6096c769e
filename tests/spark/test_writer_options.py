from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from nsqkit import OptionError
from nsqkit.spark.writer_options import COLUMNS, OPTIONS, WriterOptions, check_columns, read_writer_options
from tests.pages import ROOT


def make_options(**options: Any) -> WriterOptions:
    return WriterOptions(**{"topic": "t", "nsqd_tcp_addresses": ("a:4150",), **options})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"topic": "a b"}, "topic name 'a b' is not valid"),
        ({"nsqd_tcp_addresses": ()}, "are both empty; allowed is exactly one of them"),
        ({"lookupd_http_addresses": ("a:4161",)}, "are both set; allowed is exactly one of them"),
        ({"nsqd_tcp_addresses": ("a",)}, "address 'a'"),
        ({"nsqd_tcp_addresses": ("a:1", "a:1")}, "nsqd_tcp_addresses has one text twice; allowed is a list of"),
        ({"nsqd_tcp_addresses": (), "lookupd_http_addresses": ("a:1", "a:1")}, "lookupd_http_addresses has one text"),
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


TEXTS = {"topic": "t", "nsqd.addresses": "a:4150"}


def test_options_of_spark_are_read_whatever_the_case_of_their_names():
    assert read_writer_options(
        {
            "TOPIC": "t",
            "nsqd.addresses": "a:4150, b:4150",
            "mpubbatch": "10",
            "MPUBBYTES": "2048",
            "partitionby": "key",
            "deferMs": "5",
            "nsq.authsecret": "hush",
            "checkpointLocation": "/tmp",
            "queryname": "copy",
        }
    ) == WriterOptions(
        topic="t",
        nsqd_tcp_addresses=("a:4150", "b:4150"),
        mpub_batch=10,
        mpub_bytes=2048,
        partition_by="key",
        defer_ms=5,
        connection={"auth_secret": "hush"},
    )


def test_options_that_are_not_set_have_their_documented_defaults():
    options = read_writer_options(TEXTS)
    assert {option.name: option.default for option in OPTIONS if option.field and hasattr(options, option.field)} == {
        "topic": None,
        "nsqd.addresses": (),
        "lookupd.addresses": (),
        "mpubBatch": options.mpub_batch,
        "mpubBytes": options.mpub_bytes,
        "partitionBy": options.partition_by,
        "deferMs": options.defer_ms,
    }


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            {"chanel": "c"},
            "there is no option 'chanel'; there are topic, nsqd.addresses, lookupd.addresses, mpubBatch,",
        ),
        ({"mpubBach": "1"}, "did you mean 'mpubBatch'?"),
        ({"mpubBatch": "many"}, "mpubBatch is 'many'; allowed is a whole number from 1 to 100000"),
        ({"mpubBytes": "6291456"}, "mpubBytes is 6291456; allowed is at most nsq.maxBodySize, 5242880"),
        ({"partitionBy": "hash"}, "partitionBy is 'hash'; allowed is"),
        ({"deferMs": "3600001"}, "deferMs is 3600001; allowed is 0 to 3600000"),
        ({"nsqd.addresses": ""}, "nsqd.addresses and lookupd.addresses are both empty; allowed is exactly one of them"),
        ({"nsqd.addresses": "a:1,a:1"}, "nsqd.addresses has one text twice; allowed is a list of host:port, each once"),
        ({"nsq.tlsCert": "x"}, "nsq.tlsCert is 'x'; allowed is to set it only with nsq.tlsV1"),
        ({"topic": "a b"}, "topic name 'a b' is not valid"),
    ],
)
def test_a_wrong_text_is_refused_under_the_documented_name(texts: dict[str, str], expected: str):
    with pytest.raises(OptionError) as caught:
        read_writer_options({**TEXTS, **texts})
    assert expected in str(caught.value)


def test_a_wrong_secret_is_not_in_the_error():
    with pytest.raises(OptionError) as caught:
        read_writer_options({**TEXTS, "nsq.authSecret": "hush\n", "lookupd.addresses": "http://user:hush@a:1"})
    assert "hush" not in str(caught.value)


def test_the_page_has_all_columns_and_options_of_a_write():
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    section = page.partition("## Publish a DataFrame\n")[2].partition("\n## ")[0]
    columns, options = section.partition("| option | default |")[::2]
    assert re.findall(r"^\| `(\w+)` \|", columns, re.MULTILINE) == list(COLUMNS)

    def shown(default: object) -> str:
        if default is None or default == ():
            return "–"
        return f"{default:,}" if isinstance(default, int) else f"`{default}`"

    assert re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*) \|$", options, re.MULTILINE) == [
        (option.name, shown(option.default), option.meaning) for option in OPTIONS if not option.name.startswith("nsq.")
    ]
