from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import attrs
import pytest

from nsqkit.lookupd import cli
from nsqkit.lookupd.options import OPTIONS, LookupdOptions


@pytest.fixture
def started(monkeypatch):
    """The options of every nsqlookupd that the command would have run; each run ends with code 7."""
    options: list[LookupdOptions] = []

    def run(given: LookupdOptions) -> int:
        options.append(given)
        return 7

    monkeypatch.setattr(cli, "COMMAND", attrs.evolve(cli.COMMAND, run=run))
    monkeypatch.setattr(socket, "gethostname", lambda: "host-of-the-test")
    return options


def test_nsqlookupd_without_flags_has_the_defaults_of_this_host(started):
    assert cli.main([]) == 7
    assert started == [LookupdOptions(broadcast_address="host-of-the-test")]


def test_flags_override_the_configuration_file(started, tmp_path):
    path = tmp_path / "nsqlookupd.cfg"
    path.write_text('tcp_address = "a:1"\nbroadcast_address = "b"\ninactive_producer_timeout = "5m"\n')
    cli.main([f"-config={path}", "--tcp-address=c:2", "-tombstone-lifetime", "30s", "--verbose"])
    assert started == [
        LookupdOptions(
            tcp_address="c:2",
            broadcast_address="b",
            inactive_producer_timeout_ns=300 * 10**9,
            tombstone_lifetime_ns=30 * 10**9,
        )
    ]


def test_the_version_is_printed(started, capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("nsqlookupd v1.3.0 (built w/go")
    assert not started


def test_help_lists_every_flag_of_nsqlookupd_and_none_of_nsqds(started, capsys):
    assert cli.main(["-help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage of nsqlookupd:\n")
    for option in OPTIONS.values():
        assert f"\n  -{option.flag} " in out
    assert "-worker-id" not in out


@pytest.mark.parametrize("flag", ["--worker-id=1", "--data-path=."])
def test_a_flag_of_nsqd_is_none_of_nsqlookupd(flag, started, capsys):
    assert cli.main([flag]) == 2
    assert capsys.readouterr().err.startswith("flag provided but not defined: -")


def test_reading_a_command_line_imports_nothing_slow():
    program = (
        "import sys, nsqkit; before = set(sys.modules); from nsqkit.lookupd import cli; "
        "print(*(set(sys.modules) - before) & "
        "{'anyio', 'argparse', 'asyncio', 'h11', 'json', 'ssl', 'tomllib', 'nsqkit.lookupd.server'})"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


# ---- the program ----------------------------------------------------------------------------------------------

ADDRESSES = ("-tcp-address", "127.0.0.1:0", "--http-address=127.0.0.1:0")
LINE = r"\[nsqlookupd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} "


@contextmanager
def program(*flags):
    """Start an nsqlookupd in a process; kill the process at the end."""
    words = [sys.executable, "-m", "nsqkit", "nsqlookupd", *ADDRESSES, *flags]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_the_program_logs_its_ports_answers_and_ends_by_a_signal(stop_signal):
    with program() as process:
        log = "".join(process.stderr.readline() for _ in range(4))
        found = re.fullmatch(
            rf"{LINE}INFO: nsqlookupd v1\.3\.0 \(built w/go\S+\)\n"
            rf"{LINE}INFO: event loop: .+\n"
            rf"{LINE}INFO: TCP: listening on 127\.0\.0\.1:(\d+)\n"
            rf"{LINE}INFO: HTTP: listening on 127\.0\.0\.1:(\d+)\n",
            log,
        )
        assert found, log
        with socket.create_connection(("127.0.0.1", int(found[1])), timeout=60) as client:
            client.sendall(b"  V1PING\n")
            assert client.recv(100) == b"\0\0\0\2OK"
            with urllib.request.urlopen(f"http://127.0.0.1:{found[2]}/ping", timeout=60) as answer:
                assert answer.read() == b"OK"
            process.send_signal(stop_signal)
            assert client.recv(100) == b""
        assert process.wait(timeout=60) == 0
        rest = process.stderr.read()
    assert f"INFO: stopping on {stop_signal.name}\n" in rest
    assert "Traceback" not in rest


def test_level_and_prefix_of_the_log_are_options():
    with program("--log-level=fatal", "--log-prefix=<l> ", "--tcp-address=nowhere") as process:
        log = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert re.fullmatch(r"<l> \S+ \S+ FATAL: address 'nowhere' is not host:port with a port of 0 to 65535\n", log)
