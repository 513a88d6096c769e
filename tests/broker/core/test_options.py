from __future__ import annotations

import attrs
import pytest

from nsqkit.broker.core.options import OPTIONS, BrokerOptions, default_node_id
from nsqkit.errors import OptionError
from nsqkit.options.option import Kind

SECOND = 1_000_000_000

# By their names in a configuration file: the defaults of nsqd on a host called localhost, as its /config shows them.
NSQD_DEFAULTS = {
    "auth_http_addresses": [],
    "auth_http_request_method": "get",
    "broadcast_address": "localhost",
    "broadcast_http_port": 0,
    "broadcast_tcp_port": 0,
    "data_path": "",
    "deflate": True,
    "e2e_processing_latency_percentiles": [],
    "e2e_processing_latency_window_time": 600 * SECOND,
    "enable_experiment": [],
    "http_address": "0.0.0.0:4151",
    "http_client_connect_timeout": 2 * SECOND,
    "http_client_request_timeout": 5 * SECOND,
    "https_address": "0.0.0.0:4152",
    "id": 16,
    "log_level": 2,
    "log_prefix": "[nsqd] ",
    "max_body_size": 5242880,
    "max_bytes_per_file": 104857600,
    "max_channel_consumers": 0,
    "max_deflate_level": 6,
    "max_heartbeat_interval": 60 * SECOND,
    "max_msg_size": 1048576,
    "max_msg_timeout": 900 * SECOND,
    "max_output_buffer_size": 65536,
    "max_output_buffer_timeout": 30 * SECOND,
    "max_rdy_count": 2500,
    "max_req_timeout": 3600 * SECOND,
    "mem_queue_size": 10000,
    "min_output_buffer_timeout": 25_000_000,
    "msg_timeout": 60 * SECOND,
    "nsqlookupd_tcp_addresses": [],
    "output_buffer_timeout": 250_000_000,
    "queue_scan_selection_count": 20,
    "queue_scan_worker_pool_max": 4,
    "snappy": True,
    "statsd_address": "",
    "statsd_exclude_ephemeral": False,
    "statsd_interval": 60 * SECOND,
    "statsd_mem_stats": True,
    "statsd_prefix": "nsq.%s",
    "statsd_udp_packet_size": 508,
    "sync_every": 2500,
    "sync_timeout": 2 * SECOND,
    "tcp_address": "0.0.0.0:4150",
    "tls_cert": "",
    "tls_client_auth_policy": "",
    "tls_key": "",
    "tls_min_version": 769,
    "tls_required": 0,
    "tls_root_ca_file": "",
    "topology_region": "",
    "topology_zone": "",
}


BEYOND_NSQD = {
    "busy_poll": 0,
    "durability": "nsqd",
    "keep_deferred": False,
    "requeue_on_disconnect": False,
    "timing": "exact",
}


def test_every_option_has_the_default_of_nsqd():
    options = BrokerOptions()
    shown = {option.config_name: options.config_value(option.config_name) for option in OPTIONS.values()}
    assert shown == NSQD_DEFAULTS | BEYOND_NSQD


def test_fields_are_named_after_their_flags():
    irregular = {
        "lookupd_tcp_address": "lookupd_tcp_addresses",
        "auth_http_address": "auth_http_addresses",
        "e2e_processing_latency_percentile": "e2e_processing_latency_percentiles",
        "enable_experiment": "enable_experiments",
    }
    for name, option in OPTIONS.items():
        snake = option.flag.replace("-", "_")
        expected = f"{snake}_ns" if option.kind is Kind.DURATION else irregular.get(snake, snake)
        assert name == expected
        assert option.help


# crc32(md5(hostname)) modulo 1024, as nsqd computes it.
@pytest.mark.parametrize(("hostname", "node_id"), [("localhost", 16), ("", 812), ("nsqd-1", 958), ("h\xf6st", 218)])
def test_node_id_is_derived_from_the_host_name(hostname, node_id):
    assert default_node_id(hostname) == node_id


def test_wrong_value_is_refused_by_name():
    with pytest.raises(OptionError, match=r"^option node_id is 1024; allowed is an integer from 0 to 1023$"):
        BrokerOptions(node_id=1024)
    with pytest.raises(OptionError, match=r"^option max_deflate_level is 10; allowed is an integer from 1 to 9$"):
        BrokerOptions(max_deflate_level=10)
    with pytest.raises(OptionError, match="option log_level is 'loud'; allowed is debug or info or warn or"):
        BrokerOptions(log_level="loud")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("msg_timeout_ns", 0),
        ("sync_timeout_ns", 0),
        ("output_buffer_timeout_ns", -1),
        ("max_msg_size", 0),
        ("max_rdy_count", 0),
        ("mem_queue_size", -1),
        ("broadcast_tcp_port", 65536),
        ("auth_http_request_method", "put"),
        ("tls_client_auth_policy", "ask"),
        ("tls_min_version", "ssl3.0"),
        ("tls_required", "yes"),
        ("enable_experiments", ("nothing",)),
        ("e2e_processing_latency_percentiles", (99.0,)),
    ],
)
def test_limits(name, value):
    with pytest.raises(OptionError, match=f"option {name} is "):
        BrokerOptions(**{name: value})


def test_text_of_the_options_has_no_password_of_an_auth_server():
    options = BrokerOptions(auth_http_addresses=("http://user:hush@auth/?key=hush",))
    assert "hush" not in repr(options)
    with pytest.raises(OptionError, match=r"^option auth_http_addresses is a str; allowed is a list of texts$"):
        BrokerOptions(auth_http_addresses="http://user:hush@auth")  # type: ignore[arg-type]


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        BrokerOptions(5)  # type: ignore[call-arg]


def test_changed_copy_is_checked():
    options = BrokerOptions(mem_queue_size=0)
    assert attrs.evolve(options, log_level="debug") == BrokerOptions(mem_queue_size=0, log_level="debug")
    with pytest.raises(OptionError):
        attrs.evolve(options, log_level="loud")


def test_certificate_and_key_require_each_other():
    with pytest.raises(OptionError, match=r"option tls_key is empty and tls_cert is 'c\.pem'; allowed is both or"):
        BrokerOptions(tls_cert="c.pem")
    with pytest.raises(OptionError, match=r"option tls_cert is empty and tls_key is 'k\.pem'"):
        BrokerOptions(tls_key="k.pem")


@pytest.mark.parametrize(
    ("required", "policy", "demanded", "shown"),
    [
        ("false", "", "false", 0),
        ("false", "require", "true", 2),
        ("true", "", "true", 2),
        ("tcp-https", "", "tcp-https", 1),
        ("tcp-https", "require-verify", "tcp-https", 1),
    ],
)
def test_client_auth_policy_requires_tls(required, policy, demanded, shown):
    options = BrokerOptions(tls_cert="c.pem", tls_key="k.pem", tls_required=required, tls_client_auth_policy=policy)
    assert options.tls_demanded == demanded
    assert options.config_value("tls_required") == shown


@pytest.mark.parametrize(("name", "value"), [("tls_required", "true"), ("tls_client_auth_policy", "require")])
def test_required_tls_needs_a_certificate(name, value):
    with pytest.raises(OptionError, match=f"option tls_required is .*{value}'.*without tls_cert allowed is 'false'"):
        BrokerOptions(**{name: value})


def test_config_values_are_those_of_nsqd():
    options = BrokerOptions(
        log_level="fatal",
        tls_min_version="tls1.2",
        lookupd_tcp_addresses=("a:1", "b:2"),
        e2e_processing_latency_percentiles=(1.0, 0.5),
    )
    assert options.config_value("log_level") == 5
    assert options.config_value("tls_min_version") == 0x0303
    assert options.config_value("nsqlookupd_tcp_addresses") == ["a:1", "b:2"]
    assert options.config_value("e2e_processing_latency_percentiles") == [1.0, 0.5]


@pytest.mark.parametrize("name", ["nope", "node_id", "lookupd_tcp_address", "msg_timeout_ns", ""])
def test_unknown_config_name_is_refused(name):
    with pytest.raises(OptionError, match=f"'{name}' is not an option; allowed is one of id, log_level, "):
        BrokerOptions().config_value(name)
