from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from nsqkit.broker import cli
from nsqkit.broker.core.options import OPTIONS, BrokerOptions, default_node_id
from nsqkit.program import service


@pytest.fixture
def started(monkeypatch):
    """The options of every broker that the command would have run; each run ends with code 7."""
    options: list[BrokerOptions] = []

    def run(given: BrokerOptions) -> int:
        options.append(given)
        return 7

    monkeypatch.setattr(cli, "COMMAND", attrs.evolve(cli.COMMAND, run=run))
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
    cli.main([*words.split(), "--lookupd-tcp-address=a:1", "-lookupd-tcp-address", "b:1", "-tls-key=", "--verbose"])
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
    assert captured.err == f'flag provided but not defined: -{flag}\nnsqd: {hint}"nsqd --help" lists all flags\n'
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
    assert "option --tls-required is 'true' and tls_client_auth_policy is 'require'" in capsys.readouterr().err
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
        "{'anyio', 'argparse', 'asyncio', 'h11', 'json', 'ssl', 'tomllib', 'nsqkit.broker.server'})"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


# ---- the program ----------------------------------------------------------------------------------------------

ADDRESSES = ("-tcp-address", "127.0.0.1:0", "--http-address=127.0.0.1:0")
LINE = r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} "
NO_UVLOOP = "import sys; sys.modules['uvloop'] = None; from nsqkit.__main__ import main; sys.exit(main())"


@contextmanager
def program(*flags, python=("-m", "nsqkit")):
    """Start a broker in a process; kill the process at the end."""
    with (
        tempfile.TemporaryDirectory() as data_path,
        subprocess.Popen(
            [sys.executable, *python, "nsqd", *ADDRESSES, f"--data-path={data_path}", *flags],
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def read_log(process) -> str:
    """Return the log up to the line with the last port."""
    lines: list[str] = []
    while not lines or "HTTP: listening" not in lines[-1]:
        lines.append(process.stderr.readline())
        assert lines[-1], "".join(lines)
    return "".join(lines)


def port(log, name) -> int:
    found = re.search(rf"(?m)^{LINE}INFO: {name}: listening on 127\.0\.0\.1:(\d+)$", log)
    assert found, log
    return int(found[1])


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_the_program_logs_its_ports_answers_and_ends_by_a_signal(stop_signal):
    with program() as process:
        log = read_log(process)
        assert re.match(LINE + r"INFO: nsqd v1\.3\.0 \(built w/go\S+\)\n" + LINE + r"INFO: ID: \d+\n", log)
        assert "WARNING" not in log
        with socket.create_connection(("127.0.0.1", port(log, "TCP")), timeout=60) as client:
            client.sendall(b"  V2PUB t\n\0\0\0\1x")
            assert client.recv(100)[8:] == b"OK"
            url = f"http://127.0.0.1:{port(log, 'HTTP')}/ping"
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert answer.read() == b"OK"
            process.send_signal(stop_signal)
            assert client.recv(100) == b""
        assert process.wait(timeout=60) == 0
        rest = process.stderr.read()
        assert f"INFO: stopping on {stop_signal.name}\n" in rest
        assert "Traceback" not in rest


def test_level_and_prefix_of_the_log_are_options():
    with program(
        "--log-level=fatal",
        "--log-prefix=<broker> ",
        "--tcp-address=nowhere:at-all",
    ) as process:
        log = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert re.fullmatch(
        r"<broker> \S+ \S+ FATAL: address 'nowhere:at-all' is not host:port with a port of 0 to 65535\n", log
    )


def test_the_level_can_be_changed_while_it_runs():
    with program() as process:
        url = f"http://127.0.0.1:{port(read_log(process), 'HTTP')}"
        request = urllib.request.Request(f"{url}/config/log_level", data=b"error", method="PUT")
        for each in (request, f"{url}/ping"):
            urllib.request.urlopen(each, timeout=60).close()
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


def test_each_command_is_logged_at_debug_also_when_that_is_set_later():
    with program("--log-level=debug") as process:
        log = read_log(process)
        url = f"http://127.0.0.1:{port(log, 'HTTP')}/config/log_level"
        with socket.create_connection(("127.0.0.1", port(log, "TCP")), timeout=60) as client:
            for level, topic in (("debug", b"a"), ("info", b"b"), ("debug", b"c")):
                urllib.request.urlopen(urllib.request.Request(url, level.encode(), method="PUT"), timeout=60).close()
                client.sendall((b"  V2" if topic == b"a" else b"") + b"PUB %b\n\0\0\0\1x" % topic)
                assert client.recv(100)[8:] == b"OK"
            name = f"127.0.0.1:{client.getsockname()[1]}"
        process.terminate()
        lines = re.findall(r"DEBUG: (.*)", process.stderr.read())
    assert lines == [f"PROTOCOL(V2): [{name}] [PUB a]", f"PROTOCOL(V2): [{name}] [PUB c]"]


def test_an_address_without_a_port_is_warned_of(monkeypatch, caplog):
    monkeypatch.setattr(service, "start_log", lambda *_: None)
    monkeypatch.setattr(service, "run", lambda *_: 0)
    for tcp, http in (("foo", "127.0.0.1"), ("./foo", "@foo"), ("/foo", ""), ("a:1", ":0")):
        cli.COMMAND.run(BrokerOptions(tcp_address=tcp, http_address=http))
    assert [message.partition(" has no port")[0] for message in caplog.messages if "no port" in message] == [
        "--tcp-address=foo",
        "--http-address=127.0.0.1",
    ]


def test_an_address_in_use_is_one_line_and_exit_code_1():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with program("--log-level=warn", f"--http-address={address}") as process:
            log = process.stderr.read()
            assert process.wait(timeout=60) == 1
    assert re.fullmatch(LINE + f"FATAL: listen \\({re.escape(address)}\\) failed - Address already in use\n", log)


def test_a_missing_certificate_is_one_line_and_exit_code_1():
    with program("--log-level=warn", "--tls-cert=missing.pem", "--tls-key=missing.key") as process:
        log = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert re.fullmatch(
        LINE + r"FATAL: option tls_cert is 'missing\.pem', which cannot be read: No such file or directory\n",
        log,
    )


def test_an_unknown_flag_is_exit_code_2():
    with program("--no-such-flag") as process:
        assert process.stderr.readline() == "flag provided but not defined: -no-such-flag\n"
        process.stderr.read()
        assert process.wait(timeout=60) == 2


@pytest.mark.parametrize(
    ("python", "name"), [(("-m", "nsqkit"), "uvloop"), (("-c", NO_UVLOOP), r"asyncio \(install uvloop .+\)")]
)
def test_the_event_loop_is_logged(python, name):
    pytest.importorskip("uvloop")
    with program(python=python) as process:
        assert re.search(rf"(?m)^{LINE}INFO: event loop: {name}$", read_log(process))
        process.terminate()
        assert process.wait(timeout=60) == 0


def test_the_program_runs_in_the_current_directory_by_default(monkeypatch):
    made = {}

    def make(options: BrokerOptions, **keywords: object) -> None:
        made.update(keywords)

    monkeypatch.setattr("nsqkit.broker.server.Nsqd", make)
    monkeypatch.setattr("nsqkit.program.service.start_log", lambda prefix, level: None)
    monkeypatch.setattr("nsqkit.program.service.run", lambda nsqd, logger: 0)
    assert cli.COMMAND.run(BrokerOptions()) == 0
    assert made == {"data_path": "."}
