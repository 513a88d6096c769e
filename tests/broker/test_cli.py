from __future__ import annotations

import socket
import subprocess
import sys
import types

import pytest

from nsqkit.broker import cli
from nsqkit.broker.core.options import OPTIONS, BrokerOptions, default_node_id


@pytest.fixture
def started(monkeypatch):
    """The options of every broker that the command would have run; each run ends with code 7."""
    options: list[BrokerOptions] = []
    program = types.ModuleType("nsqkit.broker.main")

    def run(given: BrokerOptions) -> int:
        options.append(given)
        return 7

    vars(program)["run"] = run
    monkeypatch.setitem(sys.modules, "nsqkit.broker.main", program)
    monkeypatch.setattr(socket, "gethostname", lambda: "host-of-the-test")
    return options


def default_options(**values):
    node_id = default_node_id("host-of-the-test")
    return BrokerOptions(**{"node_id": node_id, "broadcast_address": "host-of-the-test", **values})


def test_without_flags_a_broker_runs_with_the_defaults_of_this_host(started):
    assert cli.main([]) == 7
    assert started == [default_options()]


def test_flags_become_options(started):
    words = "-tcp-address 127.0.0.1:0 --max-rdy-count=42 --snappy=false -deflate --msg-timeout 5s --node-id=3"
    cli.main(
        [*words.split(), "--lookupd-tcp-address=a:1", "-lookupd-tcp-address", "b:1", "-tls-key=", "--verbose"]
    )
    assert started == [
        default_options(
            tcp_address="127.0.0.1:0",
            max_rdy_count=42,
            snappy=False,
            msg_timeout_ns=5_000_000_000,
            node_id=3,
            lookupd_tcp_addresses=("a:1", "b:1"),
        )
    ]


@pytest.mark.parametrize("flag", ["-version", "--version", "--version=true"])
def test_the_version_is_printed(flag, started, capsys):
    assert cli.main([flag, "--max-rdy-count=5"]) == 0
    assert capsys.readouterr().out.startswith("nsqd v1.3.0 (built w/go")
    assert not started


@pytest.mark.parametrize("flag", ["-h", "--h", "-help", "--help"])
def test_help_lists_every_flag(flag, started, capsys):
    assert cli.main([flag]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Usage of nsqd:\n  -auth-http-address value\n")
    assert not captured.err
    for option in OPTIONS.values():
        assert f"\n  -{option.flag}" in captured.out
    assert not started


def test_an_unknown_flag_ends_with_the_words_of_go_and_the_usage(started, capsys):
    assert cli.main(["--no-such-flag"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(
        "flag provided but not defined: -no-such-flag\nUsage of nsqd:\n  -auth-http-"
    )
    assert not captured.out
    assert not started


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--msg-timeout=5"], 2, 'invalid value "5" for flag -msg-timeout: allowed is a duration, as in 300ms, '),
        (["--max-rdy-count=many"], 2, 'invalid value "many" for flag -max-rdy-count: allowed is an integer of'),
        (["--log-level=loud"], 2, 'invalid value "loud" for flag -log-level: allowed is debug or info or warn'),
        (["--deflate", "false"], 2, 'unexpected argument "false"; allowed are flags'),
        (["--node-id=1024"], 1, "option node_id is 1024; allowed is an integer from 0 to 1023"),
        (["--max-deflate-level=10"], 1, "option max_deflate_level is 10; allowed is an integer from 1 to 9"),
        (["--tls-required"], 1, "option tls_required is 'true' and tls_client_auth_policy is ''; without tls_cert"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(words, code, sentence, started, capsys):
    assert cli.main(words) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(f"nsqd: {sentence}")
    assert captured.err.count("\n") == 1
    assert not captured.out
    assert not started


def test_a_configuration_file_sets_options_and_flags_win(started, tmp_path):
    path = tmp_path / "nsqd.cfg"
    path.write_text(
        """
        id = 7
        max_rdy_count = 55
        msg_timeout = "3s"
        snappy = false
        nsqlookupd_tcp_addresses = ["a:4160", "b:4160"]
        tls_min_version = ""
        tls_required = false
        """
    )
    assert cli.main([f"--config={path}", "--max-rdy-count=44", "--lookupd-tcp-address=c:4160"]) == 7
    assert started == [
        default_options(
            node_id=7,
            max_rdy_count=44,
            msg_timeout_ns=3_000_000_000,
            snappy=False,
            lookupd_tcp_addresses=("c:4160",),
            tls_min_version="",
        )
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max_rdy = 5", 'unknown option "max_rdy"; allowed are auth_http_addresses, '),
        ("max-rdy-count = 5", 'unknown option "max-rdy-count"; allowed are '),
        ("msg_timeout = '5'", 'invalid value "5" for option msg_timeout: allowed is a duration'),
        ("=", "Invalid statement"),
        ("\xff", ""),
    ],
)
def test_a_wrong_configuration_file_is_refused_with_its_name(text, sentence, started, tmp_path, capsys):
    path = tmp_path / "nsqd.cfg"
    path.write_bytes(text.encode("latin-1"))
    assert cli.main(["--config", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f'nsqd: in the configuration file "{path}": {sentence}')
    assert not started


def test_a_configuration_file_that_cannot_be_read_is_refused(started, tmp_path, capsys):
    assert cli.main(["--config", str(tmp_path / "none")]) == 1
    expected = f'nsqd: cannot read the configuration file "{tmp_path / "none"}": No such file or directory\n'
    assert capsys.readouterr().err == expected
    assert not started


def test_a_range_is_checked_for_the_file_too(started, tmp_path, capsys):
    path = tmp_path / "nsqd.cfg"
    path.write_text("id = 5150\n")
    assert cli.main([f"--config={path}"]) == 1
    assert capsys.readouterr().err == "nsqd: option node_id is 5150; allowed is an integer from 0 to 1023\n"


def test_reading_a_command_line_imports_nothing_slow():
    # Beyond what nsqkit itself has imported: the broker has to be reachable a moment after its start.
    program = (
        "import sys, nsqkit; before = set(sys.modules); from nsqkit.broker import cli; "
        "print(*(set(sys.modules) - before) & "
        "{'anyio', 'argparse', 'asyncio', 'h11', 'json', 'ssl', 'tomllib', 'nsqkit.broker.main'})"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
