from __future__ import annotations

import re
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


@pytest.mark.parametrize(
    ("flag", "hint"), [("no-such-flag", ""), ("mem-queue-sizes", "did you mean --mem-queue-size? ")]
)
def test_an_unknown_flag_is_refused_in_the_words_of_go_with_a_hint(flag, hint, started, capsys):
    assert cli.main([f"--{flag}"]) == 2
    captured = capsys.readouterr()
    assert (
        captured.err == f'flag provided but not defined: -{flag}\nnsqd: {hint}"nsqd --help" lists all flags\n'
    )
    assert not captured.out
    assert not started


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--msg-timeout=5"], 2, 'invalid value "5" for flag --msg-timeout: allowed is a duration, as in 300ms, '),
        (["--max-rdy-count=many"], 2, 'invalid value "many" for flag --max-rdy-count: allowed is an integer of'),
        (["--log-level=loud"], 2, 'invalid value "loud" for flag --log-level: allowed is debug or info or warn'),
        (["--deflate", "false"], 2, 'unexpected argument "false"; allowed are flags'),
        (["--node-id=1024"], 1, 'invalid value "1024" for flag --node-id: allowed is an integer from 0 to 1023'),
        (["-max-deflate-level=10"], 1, 'invalid value "10" for flag --max-deflate-level: allowed is an integer from'),
        (["--msg-timeout=0s"], 1, 'invalid value "0s" for flag --msg-timeout: allowed is a duration of at least 1ns'),
        (["--enable-experiment=x"], 1, 'invalid value "x" for flag --enable-experiment: allowed is a list of topol'),
        (["--e2e-processing-latency-percentile=2"], 1, 'invalid value "2.0" for flag --e2e-processing-latency-perc'),
        (["--tls-required"], 1, "option --tls-required is 'true' and --tls-client-auth-policy is ''; without --tls-c"),
        (["--tls-cert=/tls_key"], 1, "option --tls-key is empty and --tls-cert is '/tls_key'; allowed is both or"),
    ],
)  # fmt: skip
def test_an_error_is_one_sentence(words, code, sentence, started, capsys):
    assert cli.main(words) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(f"nsqd: {sentence}")
    assert captured.err.count("\n") == 1
    assert not captured.out
    assert not started


def test_flags_override_the_configuration_file(started, tmp_path):
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
        ("id = 5150", 'invalid value "5150" for option id: allowed is an integer from 0 to 1023'),
        (
            "msg_timeout = 0",
            'invalid value "0s" for option msg_timeout: allowed is a duration of at least 1ns',
        ),
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


def test_an_unknown_key_of_the_file_is_named_and_the_broker_runs(started, tmp_path, capsys):
    path = tmp_path / "nsqd.cfg"
    path.write_text("max-rdy-count = 5\nid = 7\n[more]\nx = 1\n")
    assert cli.main([f"--config={path}"]) == 7
    place = f'nsqd: warning: in the configuration file "{path}": the unknown option'
    assert capsys.readouterr().err == (
        f'{place} "max-rdy-count" is ignored; did you mean "max_rdy_count"?\n{place} "more" is ignored\n'
    )
    assert started == [default_options(node_id=7)]


def test_contradicting_options_are_named_as_written(started, tmp_path, capsys):
    path = tmp_path / "nsqd.cfg"
    path.write_text("tls_client_auth_policy = 'require'\n")
    assert cli.main([f"--config={path}", "--tls-required"]) == 1
    assert (
        "option --tls-required is 'true' and tls_client_auth_policy is 'require'" in capsys.readouterr().err
    )
    assert not started


def test_help_lists_the_allowed_values(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for option in OPTIONS.values():
        (entry,) = re.findall(rf"(?m)^  -{option.flag}(?: .*)?\n(.*)", text)
        assert all(word in entry for word in option.choices), option.flag
        if 0 < option.high < 1 << 32:
            assert str(option.high) in entry


def test_reading_a_command_line_imports_nothing_slow():
    # Besides the imports of nsqkit itself: the broker has to accept connections soon after its start.
    program = (
        "import sys, nsqkit; before = set(sys.modules); from nsqkit.broker import cli; "
        "print(*(set(sys.modules) - before) & "
        "{'anyio', 'argparse', 'asyncio', 'h11', 'json', 'ssl', 'tomllib', 'nsqkit.broker.main'})"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
