from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest

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
    assert re.fullmatch(
        r"<l> \S+ \S+ FATAL: address 'nowhere' is not host:port with a port of 0 to 65535\n", log
    )
