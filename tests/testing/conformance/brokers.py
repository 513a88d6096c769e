"""Brokers for the tests of the suite: a right one, one that answers nothing, and one with prepared answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nsqkit.testing.conformance.case import Case
from nsqkit.testing.conformance.run import FAIL, PASS, Result, Target, run
from nsqkit.testing.servers import NsqdServer
from nsqkit.transport.address import join_address
from tests.certificates import write_files


@contextmanager
def right_broker(directory: Path | None = None, **options: Any) -> Iterator[Target]:
    """Run the test broker, with TLS if there is a directory for its certificate."""
    if directory is not None:
        files = write_files(directory)
        options |= {"tls_cert": files.certificate, "tls_key": files.key}
    with NsqdServer(**options) as nsqd:
        yield target_of(nsqd)


def target_of(nsqd: NsqdServer, *, timeout: float = 5.0) -> Target:
    return Target(tcp_address=nsqd.tcp_address, http_address=nsqd.http_address, timeout=timeout)


@contextmanager
def mute_broker() -> Iterator[Target]:
    """Let connections be made to both ports, and answer nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as server:
        address = join_address(*server.getsockname())
        yield Target(tcp_address=address, http_address=address, timeout=0.01)


@contextmanager
def prepared_broker(*answers: bytes) -> Iterator[Target]:
    """Send one answer to each connection, in their order, once something has come; and keep them open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                connections.append(connection)
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Target(tcp_address=join_address(*server.getsockname()), timeout=30.0)
        thread.join()
        for connection in connections:
            connection.close()


def failures(results: Iterable[Result]) -> list[tuple[str, str, str]]:
    return [(result.case.name, result.expected, result.came) for result in results if result.outcome == FAIL]


def check_subject(*cases: Case) -> None:
    """Check that the test broker passes each case, and that a broker that answers nothing passes none."""
    with right_broker() as target:
        assert failures(run(cases, target)) == []
    with mute_broker() as target:
        assert [result.case.name for result in run(cases, target) if result.outcome == PASS] == []
