"""Options as Spark passes them: which texts are values, and how an error names the option."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit import OptionError
from nsqkit.client.options import ConnectionOptions
from nsqkit.spark.option_text import (
    NSQ_OPTIONS,
    camel_case,
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

OPTIONS = (
    list_option("subscribe", "Topics.", expected="topics with commas between them", aliases=("topic",)),
    list_option("lookupd.addresses", "URLs.", expected="addresses", hidden=True),
    text_option("channel", None, "A channel."),
    whole_option("maxInFlight", 2500, 1, 1_000_000, "A limit.", field="max_in_flight"),
    milliseconds_option("lingerMs", 200, 1, "A time."),
    switch_option("failOnNodeLoss", False, "A switch."),
    word_option("ackMode", "wal", ("wal", "commit", "receive"), "A word."),
    *NSQ_OPTIONS,
)


@pytest.mark.parametrize(
    ("key", "text", "name", "value"),
    [
        ("maxinflight", "5", "maxInFlight", 5),
        ("MAXINFLIGHT", " 5 ", "maxInFlight", 5),
        ("lingerms", "200", "lingerMs", 200),
        ("subscribe", "a, b,,c ", "subscribe", ("a", "b", "c")),
        ("topic", "a", "subscribe", ("a",)),
        ("subscribe", "", "subscribe", ()),
        ("channel", " c", "channel", " c"),
        ("failonnodeloss", "true", "failOnNodeLoss", True),
        ("failonnodeloss", "FALSE", "failOnNodeLoss", False),
        ("ackmode", "commit ", "ackMode", "commit"),
        ("nsq.tlsv1", "true", "nsq.tlsV1", True),
        ("nsq.tlsrootcafile", "/ca.pem", "nsq.tlsRootCaFile", "/ca.pem"),
        ("nsq.authsecret", " s3cret ", "nsq.authSecret", " s3cret "),
        ("nsq.deflatelevel", "3", "nsq.deflateLevel", 3),
        ("nsq.dialtimeout", "500ms", "nsq.dialTimeout", 0.5),
        ("nsq.lookupdauthorization", "Bearer s3cret", "nsq.lookupdAuthorization", "Bearer s3cret"),
    ],
)
def test_a_text_is_read(key: str, text: str, name: str, value: object) -> None:
    assert read_options({key: text}, OPTIONS) == {name: value}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"maxinflight": "many"}, "maxInFlight is 'many'; allowed is a whole number from 1 to 1000000"),
        ({"maxinflight": "0"}, "maxInFlight is '0'; allowed"),
        ({"maxinflight": "1.5"}, "maxInFlight is '1.5'; allowed"),
        ({"maxinflight": ""}, "maxInFlight is ''; allowed"),
        ({"maxinflight": None}, "maxInFlight is None; allowed"),
        ({"lingerms": "0"}, "lingerMs is '0'; allowed is a whole number of milliseconds from 1 to 86400000"),
        ({"lingerms": "1s"}, "lingerMs is '1s'; allowed is a whole number of milliseconds"),
        ({"failonnodeloss": "perhaps"}, "failOnNodeLoss is 'perhaps'; allowed is true or false"),
        ({"ackmode": "never"}, "ackMode is 'never'; allowed is wal or commit or receive"),
        ({"nsq.tlsv1": "2"}, "nsq.tlsV1 is '2'; allowed is true or false"),
        (
            {"nsq.dialtimeout": "soon"},
            "nsq.dialTimeout is 'soon'; allowed is a number from 0.1 to 300 seconds, or",
        ),
        ({"nsq.tlsminversion": "tls9"}, "nsq.tlsMinVersion is 'tls9'; allowed is 'tls1.0' or"),
        ({"nsq.deflatelevel": "10"}, "nsq.deflateLevel is '10'; allowed is a whole number from 1 to 9"),
        ({"maxinfligt": "5"}, "there is no option 'maxinfligt'; did you mean 'maxInFlight'?"),
        ({"nsq.tlsv2": "5"}, "there is no option 'nsq.tlsv2'; did you mean 'nsq.tlsV1'?"),
        ({"qqqq": "5"}, "there is no option 'qqqq'; there are subscribe, topic, lookupd.addresses, channel,"),
        ({"qqqq": "5"}, "and those that begin with nsq."),
        ({"subscribe": "a", "topic": "b"}, "subscribe or topic is set twice; allowed is once"),
        ({"nsq.tlsContext": "x"}, "there is no option 'nsq.tlsContext'"),
    ],
)
def test_a_wrong_option_is_refused_by_its_documented_name(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options(options, OPTIONS)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"nsq.authsecret": "s3cret\n"},
        {"nsq.lookupdauthorization": "s3cret\n"},
        {"lookupd.addresses": ["http://u:s3cret@l"]},
        {"nsq.authsecre": "s3cret"},
    ],
)
def test_no_error_has_the_value_of_a_secret(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        read_options(options, OPTIONS)
    assert "s3cret" not in str(caught.value)


def test_options_of_spark_itself_are_ignored() -> None:
    assert read_options({"checkpointlocation": "/c"}, OPTIONS, ignored=["checkpointLocation"]) == {}


def test_the_options_of_clients_become_their_keywords() -> None:
    values = read_options({"nsq.tlsv1": "true", "nsq.authsecret": "s", "maxinflight": "5"}, OPTIONS)
    assert connection_of(values) == {"tls_v1": True, "auth_secret": "s"}


def test_every_option_of_connections_that_a_text_can_stand_for_has_a_name() -> None:
    fields = {option.field for option in NSQ_OPTIONS}
    assert set(attrs.fields_dict(ConnectionOptions)) - fields == {"tls_context", "on_connection"}
    assert {"lookupd_tls_cert", "lookupd_poll_timeout"} <= fields
    assert len({option.name.lower() for option in NSQ_OPTIONS}) == len(fields)


@pytest.mark.parametrize("option", NSQ_OPTIONS, ids=lambda option: option.name)
def test_the_default_of_every_option_of_clients_is_allowed(option: Any) -> None:
    assert option.option.accepts(option.default)


def test_an_error_of_an_argument_gets_the_documented_name() -> None:
    error = OptionError("tls_cert is 'a' and tls_key is ''; max_in_flight is 3")
    assert str(with_documented_names(error, OPTIONS)) == "nsq.tlsCert is 'a' and nsq.tlsKey is ''; maxInFlight is 3"


def test_names_are_in_camel_case() -> None:
    assert camel_case("tls_root_ca_file") == "tlsRootCaFile"


@given(st.dictionaries(st.sampled_from([option.name for option in OPTIONS]), st.text()))
def test_any_text_is_read_or_refused(options: dict[str, str]) -> None:
    try:
        values = read_options(options, OPTIONS)
    except OptionError:
        return
    assert values.keys() == options.keys()
