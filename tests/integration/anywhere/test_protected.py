"""TLS, compression and AUTH between clients and nsqd."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest

from nsqkit import NsqdAdmin
from nsqkit.admin.stats import ClientStats
from nsqkit.errors import AuthFailed, BrokerError, NegotiationFailed, Unauthorized
from tests.answering import PATIENT, Answering, answering, http_answer
from tests.certificates import HOST, Files, client_certificate
from tests.integration.anywhere.clients import (
    channel_stats,
    consuming,
    producing,
    running,
    until,
    until_finished,
)
from tests.integration.anywhere.servers import WAIT_LIMIT, Server, StartNsqd

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * WAIT_LIMIT)]

SECRET = "open sesame"
LAYERS: list[dict[str, Any]] = [
    {"tls_v1": True},
    {"deflate": True, "deflate_level": 3},
    {"snappy": True},
    {"tls_v1": True, "deflate": True},
    {"tls_v1": True, "snappy": True},
]


def with_certificates(files: Files, layers: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a client that trusts the authority."""
    known = {"tls_root_ca_file": files.authority, "tls_server_name": HOST}
    return {**layers, **known} if "tls_v1" in layers else layers


async def check_round_trip(nsqd: Server, topic: str, **options: Any) -> list[ClientStats]:
    """Publish and consume, and return nsqd's statistics of the producer and of the consumer."""
    bodies = {b"%d %s" % (number, b"hello " * number) for number in range(200)}
    received = []
    async with (
        producing(nsqd, **options) as producer,
        consuming(topic, nsqd, max_in_flight=50, **options) as consumer,
        running(consumer, lambda message: received.append(message.body)),
    ):
        await producer.multi_publish(topic, [body for body in bodies if len(body) % 2])
        async with anyio.create_task_group() as tasks:
            for body in bodies:
                if not len(body) % 2:
                    tasks.start_soon(producer.publish, topic, body)
        await until(lambda: consumer.stats().finished == len(bodies))
        await until_finished(len(bodies), nsqd, topic)
        assert sorted(received) == sorted(bodies)
        (publisher,) = [
            client
            for client in (await NsqdAdmin(nsqd.http_address, **PATIENT).stats()).producers
            if topic in {count.topic for count in client.pub_counts}
        ]
        return [publisher, *(await channel_stats(nsqd, topic)).clients]


@pytest.mark.parametrize("layers", LAYERS, ids="-".join)
async def test_messages_pass_through_layers(nsqd: Server, topic: str, certificates: Files, layers: dict[str, Any]):
    clients = await check_round_trip(nsqd, topic, **with_certificates(certificates, layers))
    for client in clients:
        assert client.tls == ("tls_v1" in layers)
        assert client.deflate == ("deflate" in layers)
        assert client.snappy == ("snappy" in layers)
        assert client.user_agent.startswith("nsqkit/")


async def test_certificate_of_an_unknown_authority_is_refused(nsqd: Server, topic: str):
    error = await why_not(nsqd, topic, tls_v1=True, tls_server_name=HOST)
    assert isinstance(error, NegotiationFailed)
    error = await why_not(nsqd, topic, tls_v1=True, tls_insecure_skip_verify=True, tls_min_version="tls1.3")
    assert error is None


async def why_not(nsqd: Server, topic: str, **options: Any) -> Exception | None:
    """Return why a consumer is refused; None if it is accepted."""
    async with consuming(topic, nsqd, **options) as consumer:
        await until(lambda: consumer.unconnected.get(nsqd.tcp_address) or nsqd.tcp_address not in consumer.unconnected)
        return consumer.unconnected.get(nsqd.tcp_address)


@asynccontextmanager
async def auth_server(topic: str) -> AsyncIterator[Answering]:
    """Run an auth server that grants one topic for SECRET."""
    grant = {"topic": f"^{topic}$", "channels": [".*"], "permissions": ["subscribe", "publish"]}

    def answer(request: bytes) -> bytes:
        target = request.split()[1].decode()
        if parse_qs(urlsplit(target).query).get("secret") != [SECRET]:
            return http_answer(b"{}", status="403 Forbidden")
        return http_answer(json.dumps({"ttl": 60, "identity": "ali", "authorizations": [grant]}).encode())

    async with answering(answer) as server:
        yield server


async def test_client_with_the_secret_is_accepted(start_nsqd: StartNsqd, topic: str):
    async with auth_server(topic) as server:
        nsqd = start_nsqd(f"--auth-http-address={server.address}")
        clients = await check_round_trip(nsqd, topic, auth_secret=SECRET)
        assert [(client.authed, client.auth_identity) for client in clients] == [(True, "ali")] * 2
        assert isinstance(await why_not(nsqd, topic), BrokerError | NegotiationFailed)
        assert isinstance(await why_not(nsqd, topic, auth_secret="close sesame"), AuthFailed)
        assert isinstance(await why_not(nsqd, f"{topic}_of_others", auth_secret=SECRET), Unauthorized)
        async with producing(nsqd, auth_secret=SECRET) as producer:
            with pytest.raises(Unauthorized):
                await producer.publish(f"{topic}_of_others", b"x")


async def test_secret_and_certificates_at_both_ends(
    start_nsqd: StartNsqd, topic: str, certificates: Files, tmp_path: Path
):
    own = str(tmp_path / "client.pem")
    client_certificate().private_key_and_cert_chain_pem.write_to_path(own)
    async with auth_server(topic) as server:
        nsqd = start_nsqd(
            f"--auth-http-address={server.address}",
            f"--tls-cert={certificates.certificate}",
            f"--tls-key={certificates.key}",
            f"--tls-root-ca-file={certificates.authority}",
            "--tls-client-auth-policy=require-verify",
            "--tls-required=tcp-https",
        )
        known = with_certificates(certificates, {"tls_v1": True, "auth_secret": SECRET})
        assert await why_not(nsqd, topic, auth_secret=SECRET) is not None
        assert isinstance(await why_not(nsqd, topic, **known), NegotiationFailed)
        clients = await check_round_trip(nsqd, topic, **known, snappy=True, tls_cert=own, tls_key=own)
        assert all(client.authed and client.tls and client.snappy for client in clients)
