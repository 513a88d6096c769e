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

import pytest

from nsqkit.broker import main
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.program import service

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
                urllib.request.urlopen(
                    urllib.request.Request(url, level.encode(), method="PUT"), timeout=60
                ).close()
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
        main.run(BrokerOptions(tcp_address=tcp, http_address=http))
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
    assert re.fullmatch(
        LINE + f"FATAL: listen \\({re.escape(address)}\\) failed - Address already in use\n", log
    )


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

    monkeypatch.setattr(main, "Nsqd", make)
    monkeypatch.setattr("nsqkit.program.service.start_log", lambda prefix, level: None)
    monkeypatch.setattr("nsqkit.program.service.run", lambda nsqd, logger: 0)
    assert main.run(BrokerOptions()) == 0
    assert made == {"data_path": "."}
