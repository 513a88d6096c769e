from __future__ import annotations

import ssl

import attrs
import pytest

from nsqkit.client.options import USER_AGENT, ConnectionKeywords, ConnectionOptions
from nsqkit.errors import OptionError
from nsqkit.options.checks import make_options
from nsqkit.wire.identify import IdentifyRequest
from tests.wrong_options import check_option, declared_types, keyword_types, names


@pytest.mark.parametrize("name", names(ConnectionOptions))
def test_invalid_value_is_refused_with_name_and_limits(name):
    check_option(ConnectionOptions, name)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"heartbeat_interval": 0.5},
            "heartbeat_interval is 0.5; allowed is 0, or a number from 1 to 60 seconds",
        ),
        ({"max_msg_size": 1.0}, "max_msg_size is 1.0; allowed is a whole number from 1 to 1073741824"),
        ({"client_id": None}, "client_id is None; allowed is a str"),
        (
            {"heartbeat_interval": 30, "read_timeout": 29},
            "heartbeat_interval is 30; allowed is at most read_timeout, 29",
        ),
        (
            {"reconnect_delay_min": 20, "reconnect_delay_max": 15},
            "reconnect_delay_min is 20; allowed is at most reconnect_delay_max, 15",
        ),
        (
            {"local_addr": "localhost"},
            "local_addr is 'localhost'; allowed is an IP address such as '192.0.2.7' or '2001:db8::7'",
        ),
    ],
)
def test_error_of_a_wrong_value(options, sentence):
    with pytest.raises(OptionError) as caught:
        ConnectionOptions(**options)
    assert str(caught.value) == sentence


def test_defaults_are_those_of_go_nsq():
    assert attrs.asdict(ConnectionOptions()) == {
        "client_id": "",
        "hostname": "",
        "user_agent": USER_AGENT,
        "heartbeat_interval": 30.0,
        "dial_timeout": 1.0,
        "read_timeout": 60.0,
        "write_timeout": 1.0,
        "local_addr": "",
        "tls_v1": False,
        "tls_context": None,
        "tls_root_ca_file": "",
        "tls_cert": "",
        "tls_key": "",
        "tls_min_version": "tls1.2",
        "tls_insecure_skip_verify": False,
        "tls_server_name": "",
        "snappy": False,
        "deflate": False,
        "deflate_level": 6,
        "auth_secret": "",
        "output_buffer_size": 16384,
        "output_buffer_timeout": 0.25,
        "topology_region": "",
        "topology_zone": "",
        "max_msg_size": 1024 * 1024,
        "max_body_size": 5 * 1024 * 1024,
        "reconnect_delay_min": 0.1,
        "reconnect_delay_max": 15.0,
        "on_connection": None,
        "end_on_permanent_error": False,
    }


CONTEXT = ssl.create_default_context()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"snappy": True, "deflate": True},
            "snappy and deflate are both True; allowed is at most one of them",
        ),
        ({"deflate_level": 3}, "deflate_level is 3; allowed is to set it only with deflate"),
        *(
            (
                {name: value},
                f"{name} is {value!r}; allowed is to set it only with tls_v1",
            )
            for name, value in {
                "tls_context": CONTEXT,
                "tls_root_ca_file": "ca.pem",
                "tls_cert": "cert.pem",
                "tls_key": "cert.key",
                "tls_min_version": "tls1.3",
                "tls_insecure_skip_verify": True,
                "tls_server_name": "nsqd.example.org",
            }.items()
        ),
        *(
            (
                {"tls_v1": True, "tls_context": CONTEXT, name: value},
                f"{name} is {value!r}; allowed is to set it only without tls_context, which sets it",
            )
            for name, value in {
                "tls_root_ca_file": "ca.pem",
                "tls_cert": "cert.pem",
                "tls_key": "cert.key",
                "tls_min_version": "tls1.3",
                "tls_insecure_skip_verify": True,
            }.items()
        ),
        (
            {"tls_v1": True, "tls_cert": "cert.pem"},
            "tls_cert is 'cert.pem' and tls_key is ''; allowed is both or neither",
        ),
        (
            {"tls_v1": True, "tls_key": "cert.key"},
            "tls_cert is '' and tls_key is 'cert.key'; allowed is both or neither",
        ),
        (
            {"tls_v1": True, "tls_root_ca_file": "ca.pem", "tls_insecure_skip_verify": True},
            "tls_root_ca_file is 'ca.pem'; allowed is to set it only without tls_insecure_skip_verify",
        ),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_contradicting_options_are_refused(options, sentence):
    with pytest.raises(OptionError) as caught:
        ConnectionOptions(**options)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "options",
    [
        {"snappy": True, "tls_v1": True},
        {"deflate": True, "deflate_level": 9},
        {"tls_v1": True, "tls_context": CONTEXT, "tls_server_name": "nsqd.example.org"},
        {"tls_v1": True, "tls_cert": "cert.pem", "tls_key": "cert.pem", "tls_root_ca_file": "ca.pem"},
        {"tls_v1": True, "tls_insecure_skip_verify": True, "tls_min_version": "tls1.0"},
        {"heartbeat_interval": 0, "read_timeout": 0.1},
        {"local_addr": "2001:db8::7"},
    ],
)
def test_compatible_options_are_accepted(options):
    assert make_options(ConnectionOptions, options) == ConnectionOptions(**options)


def test_snappy_is_refused_without_its_library(monkeypatch):
    monkeypatch.setattr("nsqkit.client.options.snappy_available", lambda: False)
    with pytest.raises(OptionError, match=r"snappy is True; allowed .* nsqkit\[snappy\]"):
        ConnectionOptions(snappy=True)


def test_secret_is_in_no_repr():
    assert "hush" not in repr(ConnectionOptions(auth_secret="hush"))


def test_keywords_are_the_options():
    assert declared_types(ConnectionKeywords) == keyword_types(ConnectionOptions)


def test_identify_has_the_name_of_the_host():
    def identify_fields(**options):
        request = ConnectionOptions(**options).identify_request("worker-7.example.org", sample_rate=5)
        assert (request.feature_negotiation, request.heartbeat_interval, request.sample_rate) == (
            True,
            30_000,
            5,
        )
        return request.hostname, request.client_id

    assert identify_fields() == ("worker-7.example.org", "worker-7")
    assert identify_fields(hostname="other.example.org") == ("other.example.org", "other")
    assert identify_fields(hostname="h", client_id="me.myself") == ("h", "me.myself")


def test_identify_has_the_options_in_the_units_of_the_wire():
    options = ConnectionOptions(
        user_agent="mine/2",
        heartbeat_interval=2.5,
        output_buffer_size=100,
        output_buffer_timeout=0.03,
        tls_v1=True,
        deflate=True,
        deflate_level=2,
        topology_region="r",
        topology_zone="z",
    )
    assert options.identify_request("h", msg_timeout_ms=7000, sample_rate=9) == IdentifyRequest(
        client_id="h",
        hostname="h",
        user_agent="mine/2",
        feature_negotiation=True,
        heartbeat_interval=2500,
        output_buffer_size=100,
        output_buffer_timeout=30,
        tls_v1=True,
        deflate=True,
        deflate_level=2,
        sample_rate=9,
        msg_timeout=7000,
        topology_region="r",
        topology_zone="z",
    )


def test_disabled_options_are_minus_one_in_identify():
    options = ConnectionOptions(heartbeat_interval=0, output_buffer_size=0, output_buffer_timeout=0, snappy=True)
    request = options.identify_request("h")
    assert (request.heartbeat_interval, request.output_buffer_size, request.output_buffer_timeout) == (
        -1,
        -1,
        -1,
    )
    assert (request.snappy, request.deflate, request.deflate_level) == (True, False, 0)
