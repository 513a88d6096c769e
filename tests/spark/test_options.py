from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from nsqkit import OptionError
from nsqkit.spark.options import ConsumerSpec


def make_spec(**options):
    return ConsumerSpec(**{"topic": "t", "channel": "c", "nsqd_tcp_addresses": ["a:4150", "b:4150"], **options})


def test_a_spec_pickles():
    spec = make_spec(partitions=3, deadline=5.0)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.nsqd_tcp_addresses == ("a:4150", "b:4150")


def test_durations_may_be_timedeltas():
    spec = make_spec(deadline=timedelta(minutes=1), linger=timedelta(milliseconds=500))
    assert spec == make_spec(deadline=60.0, linger=0.5)


def test_the_default_is_one_partition_for_each_nsqd():
    assert make_spec().partition_count == 2


@pytest.mark.parametrize(("partitions", "connections"), [(1, 2), (2, 2), (5, 5)])
def test_every_partition_and_every_nsqd_has_a_connection(partitions: int, connections: int):
    assert make_spec(partitions=partitions).connection_count == connections


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "a b"}, "topic name 'a b' is not valid"),
        ({"channel": ""}, "channel name '' is not valid"),
        ({"nsqd_tcp_addresses": "a:4150"}, "nsqd_tcp_addresses is 'a:4150'"),
        ({"nsqd_tcp_addresses": []}, "nsqd_tcp_addresses is empty"),
        ({"nsqd_tcp_addresses": 4150}, "nsqd_tcp_addresses is 4150"),
        ({"nsqd_tcp_addresses": ["a"]}, "address 'a' is not host:port"),
        ({"nsqd_tcp_addresses": ["a:1", "a:1"]}, "each address once"),
        ({"partitions": 0}, "partitions is 0; allowed is a whole number from 1"),
        ({"partitions": True}, "partitions is True"),
        ({"max_in_flight": None}, "max_in_flight is None"),
        ({"max_in_flight": 1}, "one for each of the 2 connections"),
        ({"partitions": 9, "max_in_flight": 8}, "one for each of the 9 connections"),
        ({"max_messages": -1}, "max_messages is -1"),
        ({"max_messages": 1.5}, "max_messages is 1.5"),
        ({"empty_for": 0}, "empty_for is 0; allowed is a number from 0.001 to 86400 seconds, or None"),
        ({"deadline": float("nan")}, "deadline is nan"),
        ({"deadline": "1"}, "deadline is '1'"),
        ({"linger": -1}, "linger is -1"),
        ({"linger": None}, "linger is None"),
        ({"chunk_bytes": 0}, "chunk_bytes is 0"),
        ({"msg_timeout": 0.5}, "msg_timeout is 0.5; allowed is a number from 1 to 86400 seconds"),
        ({"connect_timeout": 0}, "connect_timeout is 0"),
        ({"empty_for": None}, "max_messages, empty_for and deadline are all None"),
    ],
)
def test_a_wrong_value_is_refused(options: dict, sentence: str):
    with pytest.raises(OptionError) as caught:
        make_spec(**options)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("limit", [{"max_messages": 1}, {"deadline": 1.0}, {"max_messages": 0}])
def test_one_limit_is_enough(limit: dict):
    make_spec(empty_for=None, **limit)
