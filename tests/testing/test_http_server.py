from __future__ import annotations

import socket

import pytest

from nsqkit.http.messages import Request, Response
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.http_faults import HTTPFaults
from nsqkit.testing.http_server import HTTPServer
from nsqkit.transport.address import split_address


def handle(request: Request) -> Response:
    return Response.plain("OK")


def get(address: str) -> bytes:
    with socket.create_connection(split_address(address), timeout=60) as client:
        client.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        answer: bytes = client.makefile("rb").read()
        return answer


def test_server_answers_within_the_with_only_and_keeps_its_address() -> None:
    faults = HTTPFaults(["/ping"], topics=False)
    server = HTTPServer(handle, faults, ControlledClock())
    addresses = set()
    for _ in range(2):
        with server:
            addresses.add(server.address)
            assert get(server.address).endswith(b"\r\n\r\nOK")
            with faults.status(500):
                assert get(server.address).startswith(b"HTTP/1.1 500 ")
        with pytest.raises(ConnectionRefusedError):
            get(server.address)
    assert len(addresses) == 1
