from __future__ import annotations

import string
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nsqkit
from nsqkit.client.options import ConnectionOptions
from nsqkit.errors import OptionError
from nsqkit.options.fields import seconds, whole
from nsqkit.options.option import Option
from nsqkit.options.settings import load_options, load_settings
from nsqkit.producer import HTTPProducerOptions
from tests.wrong_options import names


@attrs.frozen(kw_only=True)
class ConsumerOptions(ConnectionOptions):
    """Options of one client."""

    addresses: ClassVar = ("nsqd_tcp_addresses", "lookupd_http_addresses")

    max_in_flight: int = whole(1, 0, 1_000_000)


@attrs.frozen(kw_only=True)
class ProducerOptions(ConnectionOptions):
    """Options of another client."""

    linger: float = seconds(0.0, 0.0, 60.0)


@pytest.fixture
def write(tmp_path: Path):
    """Return a function that writes a file."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "app.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(cls=ConsumerOptions, **arguments) -> str:
    with pytest.raises(OptionError) as caught:
        load_options(cls, **arguments)
    return str(caught.value)


def test_option_that_is_not_set_has_its_default():
    assert load_options(ConsumerOptions) == ConsumerOptions()
    assert load_settings(ConsumerOptions, environ={"PATH": "/bin"}) == {}


def test_arguments_precede_the_environment_and_that_precedes_the_file(write):
    path = write('[nsqkit]\nclient_id = "file"\nhostname = "file"\nuser_agent = "file"\nmax_in_flight = 3\n')
    environ = {"NSQKIT_CLIENT_ID": "environment", "NSQKIT_HOSTNAME": "environment"}
    settings = load_settings(ConsumerOptions, environ=environ, toml_path=path, client_id="argument")
    assert settings == {
        "client_id": "argument",
        "hostname": "environment",
        "user_agent": "file",
        "max_in_flight": 3,
    }
    assert load_options(ConsumerOptions, environ=environ, toml_path=path, client_id="argument") == (
        ConsumerOptions(**settings)
    )


def test_variables_are_read_by_the_kind_of_the_option():
    environ = {
        "NSQKIT_MAX_IN_FLIGHT": "200",
        "NSQKIT_READ_TIMEOUT": "1m30s",
        "NSQKIT_DIAL_TIMEOUT": "2.5",
        "NSQKIT_TLS_V1": "true",
        "NSQKIT_AUTH_SECRET": "0123",
        "NSQKIT_CLIENT_ID": "",
        "nsqkit_hostname": "on windows",
        "NSQ_KIT": "not ours",
    }
    assert load_settings(ConsumerOptions, environ=environ) == {
        "max_in_flight": 200,
        "read_timeout": 90.0,
        "dial_timeout": 2.5,
        "tls_v1": True,
        "auth_secret": "0123",
        "client_id": "",
        "hostname": "on windows",
    }


def test_file_has_typed_values_and_durations_as_text(write):
    path = write('[tool.nsqkit]\nread_timeout = "1m30s"\ndial_timeout = 2\ntls_v1 = true\ndeflate = false\n')
    assert load_settings(ConsumerOptions, toml_path=str(path), toml_table="tool.nsqkit") == {
        "read_timeout": 90.0,
        "dial_timeout": 2,
        "tls_v1": True,
        "deflate": False,
    }


def test_loaded_settings_are_arguments_of_clients():
    environ = {
        "NSQKIT_NSQD_TCP_ADDRESSES": "a:4150,b:4150",
        "NSQKIT_MAX_IN_FLIGHT": "200",
        "NSQKIT_CONNECT_TIMEOUT": "10s",
        "NSQKIT_DEFLATE": "true",
    }
    settings = load_settings(nsqkit.ConsumerOptions, environ=environ, beside=[nsqkit.ProducerOptions])
    consumer = nsqkit.Consumer("t", "c", **settings)
    assert (consumer.options.max_in_flight, consumer.options.deflate) == (200, True)
    settings = load_settings(nsqkit.ProducerOptions, environ=environ, beside=[nsqkit.ConsumerOptions])
    producer = nsqkit.Producer(**settings)
    assert producer.nsqd_tcp_addresses == ("a:4150", "b:4150")
    assert (producer.options.connect_timeout, producer.options.deflate) == (10.0, True)


def test_each_client_loads_its_own_addresses():
    environ = {
        "NSQKIT_NSQD_TCP_ADDRESSES": "a:4150",
        "NSQKIT_NSQD_HTTP_ADDRESSES": "a:4151,https://b/",
        "NSQKIT_LOOKUPD_HTTP_ADDRESSES": "http://c:4161",
    }
    classes: list[Any] = [nsqkit.ProducerOptions, nsqkit.ConsumerOptions, HTTPProducerOptions]
    loaded = {cls: load_settings(cls, environ=environ, beside=classes) for cls in classes}
    assert {cls: tuple(settings) for cls, settings in loaded.items()} == {cls: cls.addresses for cls in classes}
    for client in (nsqkit.Producer, nsqkit.BlockingProducer):
        client(**loaded[nsqkit.ProducerOptions])
    nsqkit.Consumer("t", "c", **loaded[nsqkit.ConsumerOptions])
    nsqkit.HTTPProducer(**loaded[HTTPProducerOptions])
    with pytest.raises(OptionError, match="variable NSQKIT_LOOKUPD_HTTP_ADDRESSES: there is no option"):
        load_settings(nsqkit.ProducerOptions, environ=environ)


def test_addresses_are_loaded_as_lists(write):
    path = write('[nsqkit]\nnsqd_tcp_addresses = ["a:1", "/run/nsqd.sock"]\n')
    environ = {"NSQKIT_LOOKUPD_HTTP_ADDRESSES": "b:4161, c:4161", "NSQKIT_MAX_IN_FLIGHT": "5"}
    assert load_settings(ConsumerOptions, environ=environ, toml_path=path) == {
        "nsqd_tcp_addresses": ["a:1", "/run/nsqd.sock"],
        "lookupd_http_addresses": ["b:4161", "c:4161"],
        "max_in_flight": 5,
    }
    assert load_options(ConsumerOptions, environ=environ, toml_path=path) == ConsumerOptions(max_in_flight=5)
    assert load_settings(ConsumerOptions, environ={"NSQKIT_NSQD_TCP_ADDRESSES": ""}) == {"nsqd_tcp_addresses": []}


@pytest.mark.parametrize(
    ("variable", "text", "sentence"),
    [
        ("MAX_IN_FLIGHT", "2x", "max_in_flight is '2x'; allowed is a whole number from 0 to 1000000"),
        ("MAX_IN_FLIGHT", "-1", "max_in_flight is -1; allowed is a whole number from 0 to 1000000"),
        ("MAX_IN_FLIGHT", "", "max_in_flight is ''; allowed is a whole number from 0 to 1000000"),
        ("READ_TIMEOUT", "1h", "read_timeout is 3600.0; allowed is a number from 0.1 to 300 seconds"),
        ("READ_TIMEOUT", "soon", "read_timeout is 'soon'; allowed is a number from 0.1 to 300 seconds"),
        ("TLS_V1", "maybe", "tls_v1 is 'maybe'; allowed is True or False"),
        ("MAX_INFLIGHT", "5", "there is no option 'max_inflight'; did you mean 'max_in_flight'?"),
        ("NSQD_TCP_ADDRESSES", "a:1,b", "address 'b' is not host:port with a port of 0 to 65535"),
        ("TLS_CONTEXT", "x", "tls_context is 'x'; allowed is None, or an object such as ssl.create_default_"),
    ],
)
def test_refusal_names_the_variable(variable, text, sentence):
    error_text = refusal(environ={f"NSQKIT_{variable}": text})
    assert error_text.startswith(f"environment variable NSQKIT_{variable}: {sentence}")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("max_in_flight = -1", "max_in_flight is -1; allowed is a whole number from 0 to 1000000"),
        ('max_in_flight = "5"', "max_in_flight is '5'; allowed is a whole number from 0 to 1000000"),
        ('read_timeout = "1h"', "read_timeout is 3600.0; allowed is a number from 0.1 to 300 seconds"),
        ("read_timeout = 12:00:00", "read_timeout is datetime.time(12, 0); allowed is a number from 0.1 to "),
        ('tls_v1 = "true"', "tls_v1 is 'true'; allowed is True or False"),
        ("max_inflight = 5", "there is no option 'max_inflight'; did you mean 'max_in_flight'?"),
        ('nsqd_tcp_addresses = "a:1"', "nsqd_tcp_addresses is 'a:1'; allowed is a list such as "),
        ("producer.linger = 5", "there is no option 'producer'; there are client_id, "),
    ],
)
def test_refusal_names_the_file_and_its_table(write, line, sentence):
    path = write(f"[nsqkit]\n{line}\n")
    name = line.split()[0].partition(".")[0]
    assert refusal(toml_path=path).startswith(f"{name} in [nsqkit] of {path}: {sentence}")


def test_seconds_may_be_a_timedelta_in_the_program():
    assert load_settings(ConsumerOptions, read_timeout=timedelta(minutes=1)) == {"read_timeout": 60.0}


def test_refusal_of_an_argument_names_no_place():
    assert refusal(max_in_flight=-1) == "max_in_flight is -1; allowed is a whole number from 0 to 1000000"
    assert refusal(read_timeout="1m") == "read_timeout is '1m'; allowed is a number from 0.1 to 300 seconds"
    assert refusal(max_inflight=5).startswith("there is no option 'max_inflight'; did you mean 'max_in_flight'?")
    assert refusal(linger=5, beside=[ProducerOptions]).startswith("there is no option 'linger'; there are ")


def test_contradiction_is_refused_with_the_places_of_the_options(write):
    path = write("[nsqkit]\nsnappy = true\nmax_in_flight = 7\n")
    assert refusal(toml_path=path, environ={"NSQKIT_DEFLATE": "1"}, deflate_level=3) == (
        "snappy and deflate are both True; allowed is at most one of them "
        f"(snappy in [nsqkit] of {path}, environment variable NSQKIT_DEFLATE)"
    )
    assert refusal(snappy=True, deflate=True) == ("snappy and deflate are both True; allowed is at most one of them")


def test_options_of_another_client_are_ignored(write):
    environ = {"NSQKIT_MAX_IN_FLIGHT": "5", "NSQKIT_LINGER": "10ms"}
    path = write("[nsqkit]\nmax_in_flight = -1\n")
    assert refusal(ProducerOptions, environ=environ).startswith("environment variable NSQKIT_MAX_IN_FLIGHT: ")
    assert load_settings(ProducerOptions, environ=environ, toml_path=path, beside=[ConsumerOptions]) == {"linger": 0.01}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[nsqkit", "{} is no TOML: "),
        (b"\xff", "{} is no TOML: "),
        ("", "{} has no table [nsqkit]"),
        ("nsqkit = 5", "{} has no table [nsqkit]"),
        ("[tool.nsqkit]\n", "{} has no table [nsqkit]"),
    ],
)
def test_file_that_cannot_be_used_is_named(write, content, sentence):
    path = write(content)
    assert refusal(toml_path=path).startswith(sentence.format(path))


def test_missing_file_is_named(tmp_path):
    assert refusal(toml_path=tmp_path / "none") == f"{tmp_path}/none cannot be read: No such file or directory"


def test_secret_is_in_no_error(write):
    path = write('[nsqkit]\nauth_secret = "hush\\n"\n')
    error_text = [
        refusal(environ={"NSQKIT_AUTH_SECRET": "hush\n"}),
        refusal(environ={"NSQKIT_AUTH_SECRET": "hush", "NSQKIT_SNAPPY": "1", "NSQKIT_DEFLATE": "1"}),
        refusal(toml_path=path),
        refusal(auth_secret=b"hush"),
    ]
    assert not [sentence for sentence in error_text if "hush" in sentence]


@given(
    st.dictionaries(
        st.sampled_from(names(ConsumerOptions)),
        st.text(string.printable, max_size=12) | st.sampled_from(["1", "true", "5s", "2", "a.pem"]),
        max_size=4,
    )
)
def test_any_environment_gives_options_or_a_refusal_that_names_a_variable(values):
    environ = {f"NSQKIT_{name.upper()}": text for name, text in values.items()}
    error_text, options = "", None
    try:
        options = load_options(ConsumerOptions, environ=environ)
    except OptionError as error:
        error_text = str(error)
    assert options is not None or "environment variable NSQKIT_" in error_text
    for name, text in values.items() if options is not None else ():
        assert getattr(options, name) == attrs.fields_dict(ConsumerOptions)[name].metadata[Option].read(text)
