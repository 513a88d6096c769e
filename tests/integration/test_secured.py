"""Producers and consumers through TLS, compression, AUTH and Unix sockets, with nsqkit's broker at the other end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nsqkit import Consumer, Producer
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.clock import ManualClock
from nsqkit.errors import AuthFailed, NegotiationFailed, Unauthorized
from nsqkit.wire.auth import AuthAnswer
from tests.answering import answering, http_answer
from tests.certificates import HOST, client_certificate, write_files
from tests.integration.stage import until

pytestmark = pytest.mark.anyio

WAIT_LIMIT = 20.0
DIALLING: dict[str, Any] = {"dial_timeout": 10.0, "reconnect_delay_max": 0.01, "reconnect_delay_min": 0.01}


@asynccontextmanager
async def broker(address: str = "127.0.0.1:0", *, clock: ManualClock | None = None, **options: Any):
    with anyio.fail_after(WAIT_LIMIT):
        flags = BrokerOptions(tcp_address=address, http_address="", https_address="", **options)
        async with Nsqd(flags, clock=clock) as nsqd:
            yield nsqd.tcp_address


async def check_roundtrip(address: str, **options: Any) -> None:
    """Publish and consume."""
    bodies = [b"%d %s" % (n, b"hello " * n) for n in range(300)]
    async with (
        Producer(address, **DIALLING, **options) as producer,
        Consumer("t", "c", nsqd_tcp_addresses=[address], max_in_flight=50, **DIALLING, **options) as consumer,
    ):
        await producer.multi_publish("t", bodies[:100])
        async with anyio.create_task_group() as tasks:
            for body in bodies[100:]:
                tasks.start_soon(producer.publish, "t", body)
            received = set()
            async for message in consumer:
                received.add(message.body)
                message.finish()
                if len(received) == len(bodies):
                    break
        assert received == set(bodies)


async def why_not(address: str, **options: Any) -> Exception:
    """Return why a client is refused."""
    async with Consumer("t", "c", nsqd_tcp_addresses=[address], **DIALLING, **options) as consumer:
        await until(lambda: consumer.unconnected.get(address))
        error = consumer.unconnected[address]
        assert error is not None
        return error


@pytest.mark.parametrize("compression", [{}, {"snappy": True}, {"deflate": True, "deflate_level": 1}])
async def test_tls_with_certificates_at_both_ends(tmp_path: Path, compression: dict[str, Any]):
    files = write_files(tmp_path)
    own = str(tmp_path / "client.pem")
    client_certificate().private_key_and_cert_chain_pem.write_to_path(own)
    flags: dict[str, Any] = {
        "tls_cert": files.certificate,
        "tls_key": files.key,
        "tls_root_ca_file": files.authority,
        "tls_client_auth_policy": "require-verify",
    }
    options = {"tls_v1": True, "tls_root_ca_file": files.authority, "tls_server_name": HOST, **compression}
    async with broker(**flags) as address:
        await check_roundtrip(address, tls_cert=own, tls_key=own, **options)
        error = await why_not(address, **options)
        assert isinstance(error, NegotiationFailed)
        assert "certificate" in str(error)


@pytest.mark.parametrize("place", ["{}/nsqd.sock", "@{}/nsqd"])
@pytest.mark.parametrize("compression", [{}, {"deflate": True}])
async def test_unix_socket(tmp_path: Path, place: str, compression: dict[str, Any]):
    async with broker(place.format(tmp_path)) as address:
        await check_roundtrip(address, **compression)


class AuthServer:
    """Grants permissions by secret.

    Attributes:
        secrets: the granted permissions.
        ttl: seconds that a grant lasts; less than the heartbeat interval.
    """

    def __init__(self, *secrets: str) -> None:
        self.secrets = {*secrets}
        self.ttl = 5

    def __call__(self, request: bytes) -> bytes:
        known = any(f"secret={secret}".encode() in request for secret in self.secrets)
        everything = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
        answer = {"ttl": self.ttl, "identity": "me", "authorizations": [everything] if known else []}
        return http_answer(json.dumps(answer).encode())


@asynccontextmanager
async def guarded(clock: ManualClock | None = None) -> AsyncIterator[tuple[str, AuthServer]]:
    server = AuthServer("hush")
    async with (
        answering(server) as auth,
        broker(clock=clock, auth_http_addresses=[auth.address]) as address,
    ):
        yield address, server


async def test_secret_is_accepted_by_a_broker_that_requires_one():
    async with guarded() as (address, _):
        await check_roundtrip(address, auth_secret="hush")


async def test_grants_appear_in_stats():
    expected = AuthAnswer(identity="me", permission_count=1)
    async with (
        guarded() as (address, _),
        Producer(address, auth_secret="hush", **DIALLING) as producer,
        Consumer("t", "c", nsqd_tcp_addresses=[address], auth_secret="hush", **DIALLING) as consumer,
    ):
        await producer.ping()
        await consumer.wait_connected()
        assert [nsqd.auth for nsqd in producer.stats().nsqds] == [expected]
        assert [connection.auth for connection in consumer.stats().connections] == [expected]


@pytest.mark.parametrize(
    ("options", "error"),
    [({}, NegotiationFailed), ({"auth_secret": "hash"}, Unauthorized)],
)
async def test_client_without_the_secret_is_refused(options: dict[str, Any], error: type[Exception]):
    async with guarded() as (address, _):
        assert isinstance(await why_not(address, **options), error)


async def test_client_is_authorized_again_after_a_grant_has_expired():
    clock = ManualClock()
    async with (
        guarded(clock) as (address, server),
        Producer(address, auth_secret="hush", **DIALLING) as producer,
    ):
        await producer.publish("t", b"one")
        clock.advance(6)
        await producer.publish("t", b"the broker has asked again by itself")
        server.secrets.clear()
        clock.advance(6)
        with pytest.raises((Unauthorized, AuthFailed)):
            await producer.publish("t", b"not any more")
        server.secrets.add("hush")
        await producer.publish("t", b"by a new connection, with a new grant")
