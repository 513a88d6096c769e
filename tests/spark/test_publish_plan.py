from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit import OptionError
from nsqkit.producer.policy import rank
from nsqkit.spark.publish_plan import Publish, PublishPlan
from nsqkit.spark.writer_options import WriterOptions

ADDRESSES = ("a:4150", "b:4150", "c:4150")


def make_options(**options: Any) -> WriterOptions:
    return WriterOptions(**{"topic": "t", "nsqd_tcp_addresses": ADDRESSES, **options})


def divide(columns: dict[str, Any], plan: PublishPlan | None = None, **options: Any) -> list[Publish]:
    types = {"body": pa.binary(), "topic": pa.string(), "key": pa.string(), "deferMs": pa.int32()}
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, types[name]) for name, column in columns.items()
    ]
    plan = plan or PublishPlan(make_options(**options), ADDRESSES)
    return list(plan.divide(pa.RecordBatch.from_arrays(arrays, names=list(columns))))


def test_rows_share_commands_in_their_order():
    found = divide({"body": [b"%d" % n for n in range(5)]}, mpub_batch=2)
    assert found == [
        Publish("t", None, 0, [b"0", b"1"]),
        Publish("t", None, 0, [b"2", b"3"]),
        Publish("t", None, 0, [b"4"]),
    ]


def test_a_command_has_at_most_mpub_bytes():
    found = divide({"body": [b"x" * 500] * 8}, mpub_bytes=1024)
    assert [len(publish.bodies) for publish in found] == [2, 2, 2, 2]
    assert all(publish.size <= 1024 for publish in found)


def test_a_body_above_mpub_bytes_is_alone():
    found = divide({"body": [b"a", b"x" * 2000, b"b", b"c"]}, mpub_bytes=1024)
    assert [publish.bodies for publish in found] == [[b"a"], [b"x" * 2000], [b"b", b"c"]]


def test_text_bodies_are_utf8():
    assert divide({"body": pa.array(["grün"])})[0].bodies == ["grün".encode()]


def test_large_types_of_arrow_are_accepted():
    columns = {"body": pa.array([b"x"], pa.large_binary()), "key": pa.array(["k"], pa.large_string())}
    assert divide(columns, partition_by="key") == [Publish("t", b"k", 0, [b"x"])]


def test_slices_of_arrow_are_accepted():
    assert divide({"body": pa.array([b"a", b"b", b"c"]).slice(1, 1)})[0].bodies == [b"b"]


def test_the_topic_column_has_precedence_over_the_option():
    found = divide({"body": [b"1", b"2", b"3"], "topic": ["u", None, "u"]})
    assert found == [Publish("u", None, 0, [b"1", b"3"]), Publish("t", None, 0, [b"2"])]


def test_a_row_with_a_delay_is_alone():
    found = divide({"body": [b"1", b"2", b"3", b"4"], "deferMs": [5, None, 0, 5]}, defer_ms=7)
    assert found == [
        Publish("t", None, 5, [b"1"]),
        Publish("t", None, 5, [b"4"]),
        Publish("t", None, 7, [b"2"]),
        Publish("t", None, 0, [b"3"]),
    ]


def test_rows_are_divided_by_the_nsqd_of_their_key():
    keys = [f"key-{n}" for n in range(100)]
    found = divide({"body": [key.encode() for key in keys], "key": keys}, partition_by="key")
    assert len(found) == len(ADDRESSES)
    for publish in found:
        assert publish.key in publish.bodies
        assert len({rank(body, ADDRESSES)[0] for body in publish.bodies}) == 1


def test_a_row_without_a_key_goes_to_any_nsqd():
    found = divide({"body": [b"1", b"2"], "key": ["k", None]}, partition_by="key")
    assert [publish.key for publish in found] == [b"k", None]


def test_keys_have_no_effect_with_round_robin():
    assert divide({"body": [b"1", b"2"], "key": ["k", "l"]}) == [Publish("t", None, 0, [b"1", b"2"])]


def test_an_empty_batch_has_no_publishes():
    assert divide({"body": []}) == []


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ({"body": [b"a", b""]}, {}, "body of row 1 has 0 bytes; allowed are 1 to max_msg_size, 1048576 bytes"),
        ({"body": [None]}, {}, "body of row 0 is null; allowed are 1 to max_msg_size, 1048576 bytes"),
        (
            {"body": [b"a", b"x" * 11]},
            {"connection": {"max_msg_size": 10}},
            "body of row 1 has 11 bytes; allowed are 1 to max_msg_size, 10 bytes",
        ),
        (
            {"body": [b"a"], "topic": [None]},
            {"topic": None},
            "topic of row 0 is null, and there is no option topic; allowed is one of both",
        ),
        (
            {"body": [b"a", b"b"], "topic": ["u", "a b"]},
            {},
            "topic of row 1: topic name 'a b' is not valid",
        ),
        ({"body": [b"a"], "deferMs": [-1]}, {}, "deferMs of row 0 is -1; allowed is 0 to 3600000"),
        ({"body": [b"a"], "deferMs": [3_600_001]}, {}, "deferMs of row 0 is 3600001; allowed is 0 to 3600000"),
    ],
)
def test_a_row_that_an_nsqd_would_refuse_is_refused(columns: Any, options: Any, expected: str):
    with pytest.raises(OptionError) as caught:
        divide(columns, **options)
    assert expected in str(caught.value)


def test_rows_are_numbered_through_all_batches_of_a_partition():
    plan = PublishPlan(make_options(), ADDRESSES)
    divide({"body": [b"a"] * 10}, plan)
    with pytest.raises(OptionError, match="body of row 12 has 0 bytes"):
        divide({"body": [b"a", b"a", b""]}, plan)


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=300),
            st.sampled_from([None, "t", "u"]),
            st.sampled_from([None, "k", "l", "m", ""]),
            st.sampled_from([None, 0, 1000]),
        )
    ),
    st.integers(1, 5),
)
def test_every_row_is_in_one_command(rows: list[tuple[bytes, str | None, str | None, int | None]], mpub_batch: int):
    columns = dict(zip(["body", "topic", "key", "deferMs"], map(list, zip(*rows, strict=True)), strict=False))
    options = make_options(mpub_batch=mpub_batch, mpub_bytes=1024, partition_by="key")
    found = divide(columns, PublishPlan(options, ADDRESSES)) if rows else []
    assert sorted((publish.topic, publish.delay_ms, body) for publish in found for body in publish.bodies) == sorted(
        (topic or "t", delay_ms or 0, body) for body, topic, _, delay_ms in rows
    )
    assert all(len(publish.bodies) <= mpub_batch for publish in found)
    assert all(publish.size <= 1024 for publish in found)
