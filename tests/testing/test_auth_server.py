from __future__ import annotations

from typing import Any

import pytest

from nsqkit import BlockingConsumer, BlockingProducer, OptionError, Producer
from nsqkit.errors import AuthFailed, NSQError, Unauthorized
from nsqkit.testing.auth_server import AuthNsqdServer, AuthServer
from tests import threads
from tests.integration.stage import until


@pytest.mark.anyio
async def test_secret_is_needed(nsqd_auth: AuthNsqdServer) -> None:
    nsqd_auth.auth.grant("secret")
    async with Producer(nsqd_auth.tcp_address, auth_secret="secret") as producer:
        await producer.publish("t", b"x")
    with pytest.raises(NSQError):
        async with Producer(nsqd_auth.tcp_address, auth_secret="other", connect_timeout=1.5) as producer:
            await producer.publish("t", b"x")
    await until(lambda: len(nsqd_auth.auth.requests) >= 2)
    assert [(request.secret, request.remote_ip) for request in nsqd_auth.auth.requests][:2] == [
        ("secret", "127.0.0.1"),
        ("other", "127.0.0.1"),
    ]


def test_grant_is_for_topics_and_channels(nsqd_auth: AuthNsqdServer) -> None:
    nsqd_auth.auth.grant("secret", "^orders$", permissions="publish")
    nsqd_auth.auth.grant("secret", "^orders$", "^billing$", permissions=["subscribe"])
    with BlockingProducer(nsqd_auth.tcp_address, auth_secret="secret") as producer:
        producer.publish("orders", b"x")
        with pytest.raises(Unauthorized):
            producer.publish("other", b"x")
    addresses: Any = [nsqd_auth.tcp_address]
    with BlockingConsumer("orders", "billing", nsqd_tcp_addresses=addresses, auth_secret="secret") as consumer:
        message = next(iter(consumer))
        assert message.body == b"x"
        message.finish()


@pytest.mark.nsqd(clock="manual")
def test_grant_expires_by_the_clock(nsqd_auth: AuthNsqdServer) -> None:
    nsqd_auth.auth.grant("secret", ttl=60)
    with BlockingProducer(nsqd_auth.tcp_address, auth_secret="secret") as producer:
        producer.publish("t", b"x")
        nsqd_auth.auth.deny("secret")
        producer.publish("t", b"x")
        nsqd_auth.clock.advance(61)
        with pytest.raises((AuthFailed, Unauthorized)):
            producer.publish("t", b"x")
    assert len(nsqd_auth.auth.requests) >= 2


@pytest.mark.parametrize("method", ["get", "post"])
def test_request_has_the_values_of_the_client_by_either_method(method: str) -> None:
    with AuthServer() as auth, AuthNsqdServer(auth, auth_http_request_method=method) as nsqd:
        auth.grant("sécret", identity="client one")
        with BlockingProducer(nsqd.tcp_address, auth_secret="sécret") as producer:
            producer.publish("t", b"x")
        (request,) = auth.requests
        assert (request.secret, request.remote_ip, request.tls, request.common_name) == (
            "sécret",
            "127.0.0.1",
            False,
            "",
        )
        auth.reset()
        assert auth.requests == []


def test_auth_server_fails_and_recovers(nsqd_auth: AuthNsqdServer) -> None:
    nsqd_auth.auth.grant("secret")
    with nsqd_auth.auth.faults.status(500) as fault:
        options: Any = {"auth_secret": "secret", "connect_timeout": 1.5}
        with pytest.raises(NSQError), BlockingProducer(nsqd_auth.tcp_address, **options) as producer:
            producer.publish("t", b"x")
        threads.until(lambda: fault.count)
    with BlockingProducer(nsqd_auth.tcp_address, auth_secret="secret") as producer:
        producer.publish("t", b"x")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"permissions": "read"}, "permissions is 'read'; allowed is 'subscribe', 'publish' or a list of both"),
        ({"permissions": []}, r"permissions is \[\]"),
        ({"ttl": 0}, "ttl is 0; allowed is 1 to 1e"),
        ({"ttl": 1.5}, "ttl is 1.5; allowed are whole seconds"),
    ],
    ids=["permission", "none", "zero", "fraction"],
)
def test_wrong_grant_is_refused(values: dict[str, Any], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        AuthServer().grant("secret", **values)
