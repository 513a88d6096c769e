from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from nsqkit import OptionError
from nsqkit.spark.options import ConsumerSpec

NSQDS = {"nsqd_tcp_addresses": ["a:4150", "b:4150"]}


def make_spec(**options):
    addresses = {} if "lookupd_http_addresses" in options else NSQDS
    return ConsumerSpec(**{"topics": "t", "channel": "c", **addresses, **options})


def test_a_spec_pickles():
    spec = make_spec(partitions=3, deadline=5.0, connection={"tls_v1": True, "auth_secret": "s3cret"})
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.nsqd_tcp_addresses == ("a:4150", "b:4150")


def test_one_topic_needs_no_list():
    assert make_spec().topics == ("t",)
    assert make_spec(topics=["t", "u"]).topics == ("t", "u")


def test_durations_may_be_timedeltas():
    spec = make_spec(deadline=timedelta(minutes=1), linger=timedelta(milliseconds=500))
    assert spec == make_spec(deadline=60.0, linger=0.5)


def test_a_spec_does_not_change_with_the_mapping_that_it_was_given():
    connection = {"snappy": False}
    spec = make_spec(connection=connection)
    connection["deflate"] = True
    assert spec.connection == {"snappy": False}


def test_the_consumers_of_partitions_get_the_options_of_connections():
    spec = make_spec(msg_timeout=5, connection={"deflate": True, "lookupd_poll_timeout": 2.0})
    keywords = {"msg_timeout": 5, "output_buffer_timeout": 0.025, "deflate": True}
    assert spec.consumer_keywords() == keywords
    assert spec.consumer_keywords(with_lookup=True) == keywords | {"lookupd_poll_timeout": 2.0}


def test_an_output_buffer_timeout_of_the_connection_replaces_the_default():
    spec = make_spec(connection={"output_buffer_timeout": 0.5})
    assert spec.output_buffer_timeout == spec.consumer_keywords()["output_buffer_timeout"] == 0.5


def test_requests_to_nsqlookupds_get_the_others():
    spec = make_spec(
        lookupd_http_addresses=["l:4161"],
        connection={"deflate": True, "lookupd_poll_timeout": 2.0, "address_map": {"a:1": "b:1"}},
    )
    assert (spec.lookup_options().lookupd_poll_timeout, spec.lookup_options().address_map) == (2.0, {"a:1": "b:1"})


def test_no_repr_has_a_secret():
    spec = make_spec(
        lookupd_http_addresses=["http://user:s3cret@l:4161/?token=s3cret"],
        connection={"auth_secret": "s3cret", "lookupd_authorization": "Bearer s3cret", "tls_v1": True},
    )
    assert "s3cret" not in repr(spec)
    assert "'http://l:4161'" in repr(spec)
    assert "'auth_secret': '(hidden)'" in repr(spec)
    assert "s3cret" not in repr(make_spec(nsqd_http_addresses=["http://u:s3cret@a:1", "b:1"]))


@pytest.mark.parametrize(
    "options",
    [
        {"connection": {"auth_secret": "s3cret\n"}},
        {"connection": {"auth_secret": ["s3cret"]}},
        {"connection": {"lookupd_authorization": "s3cret\n"}},
        {"connection": "s3cret"},
        {"lookupd_http_addresses": "http://u:s3cret@l:1"},
        {"lookupd_http_addresses": ["http://u:s3cret@l:x"]},
        {"lookupd_http_addresses": ["http://u:s3cret@l:1"] * 2},
        {"nsqd_http_addresses": "http://u:s3cret@l:1"},
        {"nsqd_http_addresses": ["http://u:s3cret@l:1"]},
    ],
)
def test_no_error_has_a_secret(options: dict):
    with pytest.raises(OptionError) as caught:
        make_spec(**options)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topics": "a b"}, "topic name 'a b' is not valid"),
        ({"topics": []}, "topics is empty"),
        ({"topics": 7}, "topics is no list of texts; allowed is a topic, or a list of topics"),
        ({"topics": [["t"]]}, "topics is no list of texts"),
        ({"topics": ["t", "t"]}, "topics has one text twice"),
        ({"channel": ""}, "channel name '' is not valid"),
        ({"nsqd_tcp_addresses": "a:4150"}, "nsqd_tcp_addresses is no list of texts"),
        ({"nsqd_tcp_addresses": []}, "are both empty; allowed is exactly one of them"),
        ({**NSQDS, "lookupd_http_addresses": ["l:1"]}, "are both set; allowed is exactly one of them"),
        ({"nsqd_tcp_addresses": 4150}, "nsqd_tcp_addresses is no list of texts; allowed is a list of host:port"),
        ({"nsqd_tcp_addresses": ["a"]}, "address 'a' is not host:port"),
        ({"nsqd_tcp_addresses": ["a:1", "a:1"]}, "each once"),
        ({"lookupd_http_addresses": ["l"]}, "address 'l' is not host:port, a URL"),
        ({"nsqd_http_addresses": ["l"]}, "address 'l' is not host:port, a URL"),
        ({"nsqd_http_addresses": ["l:1"]}, "nsqd_http_addresses has 1 addresses; allowed are none, or one for each"),
        ({"partitions": 0}, "partitions is 0; allowed is a whole number from 1 to 1024"),
        ({"partitions": 1025}, "partitions is 1025"),
        ({"partitions": True}, "partitions is True"),
        ({"max_partitions": None}, "max_partitions is None"),
        ({"max_in_flight": None}, "max_in_flight is None"),
        ({"max_in_flight": 0}, "max_in_flight is 0"),
        ({"max_messages": 0}, "max_messages is 0"),
        ({"max_messages": 1.5}, "max_messages is 1.5"),
        ({"max_bytes": 0}, "max_bytes is 0"),
        ({"empty_for": 0}, "empty_for is 0; allowed is a number from 0.001 to 86400 seconds, or None"),
        ({"deadline": float("nan")}, "deadline is nan"),
        ({"deadline": "1"}, "deadline is '1'"),
        ({"linger": -1}, "linger is -1"),
        ({"linger": None}, "linger is None"),
        ({"stop_after_linger": 1}, "stop_after_linger is 1"),
        ({"chunk_bytes": 0}, "chunk_bytes is 0"),
        ({"msg_timeout": 0.5}, "msg_timeout is 0.5; allowed is a number from 1 to 86400 seconds"),
        ({"connect_timeout": 0}, "connect_timeout is 0"),
        ({"fail_on_node_loss": None}, "fail_on_node_loss is None"),
        ({"max_attempts": 5}, "max_attempts is 5 and dead_letter_topic is None; allowed is both or neither"),
        ({"dead_letter_topic": "d"}, "max_attempts is 0 and dead_letter_topic is 'd'"),
        ({"max_attempts": 5, "dead_letter_topic": "a b"}, "topic name 'a b' is not valid"),
        ({"max_attempts": 5, "dead_letter_topic": "t"}, "allowed is a topic that is not consumed here"),
        ({"wait_in_flight": "yes"}, "wait_in_flight is 'yes'"),
        ({"empty_for": None}, "max_messages, max_bytes, empty_for and deadline are all None"),
        ({"connection": 7}, "connection is a int; allowed is a mapping"),
        ({"connection": {"tls_v2": True}}, "there is no option 'tls_v2'; did you mean 'tls_v1'?"),
        ({"connection": {"max_in_flight": 7}}, "connection has 'max_in_flight'; allowed is to set it as an option"),
        ({"connection": {"tls_context": None}}, "connection has 'tls_context', which has no effect"),
        ({"connection": {"backoff_strategy": "exponential"}}, "connection has 'backoff_strategy', which has no effect"),
        ({"connection": {"address_map": str}}, "address_map is <class 'str'>; allowed is a mapping"),
        ({"connection": {"tls_root_ca_file": "ca.pem"}}, "tls_root_ca_file is 'ca.pem'; allowed is to set it only"),
        ({"connection": {"deflate_level": 0}}, "deflate_level is 0"),
    ],
)
def test_a_wrong_value_is_refused(options: dict, sentence: str):
    with pytest.raises(OptionError) as caught:
        make_spec(**options)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("limit", [{"max_messages": 1}, {"deadline": 1.0}, {"max_bytes": 1}])
def test_one_limit_is_enough(limit: dict):
    make_spec(empty_for=None, **limit)
