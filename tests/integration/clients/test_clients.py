"""Unmodified other clients of NSQ work with nsqkit's broker as they do with nsqd.

The TABLE of ``features`` lists the features of a client; tests of a missing one are skipped with a reason. Each client
a small program beside this file, ``NAME_program``, which is started with a role and with settings in JSON, and runs
until it is killed:

* ``publish``: PUB of "one", MPUB of "two" and "three", DPUB of "later" by a millisecond, each after the answer to the
  previous one. For each it prints ``{"command": "PUB", "answer": "OK"}``.
* ``consume``: up to three messages in flight if the client can. For each it prints ``{"body": …, "attempts": …}``
  and finishes it, except that at the first attempt the body selects the answer: ``requeue`` is requeued without delay,
  ``requeue-later`` with a delay of 100 ms, ``timeout`` is not answered, and ``touch`` is touched four times in 1.2
  seconds and finished after 1.5.

Settings: ``topic``, ``channel``, ``nsqd`` (its TCP address) or ``lookupd`` (its HTTP address); optionally
``compression`` (``deflate`` or ``snappy``), ``tls`` (the paths ``ca_certs``, and for a certificate of the
client ``certfile`` and ``keyfile``), ``secret`` and ``msg_timeout`` (in seconds, requested in IDENTIFY).

The broker is a process, too; the tests read its state of the client from /stats. A machine that stalls for seconds must
not fail a test, so no timeout is short, except where the timeout is the subject of the test.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from nsqkit import Consumer, Producer
from tests.integration.clients.features import HAS, clients_with
from tests.integration.clients.processes import (
    WAIT_LIMIT,
    Program,
    Server,
    run_client,
    run_nsqlookupd,
    until,
)
from tests.integration.clients.protection import SECRET, AuthServer, Certificates

FOLDER = Path(__file__).parent

PROGRAMS: dict[str, list[str | Path]] = {
    "pynsq": [sys.executable, FOLDER / "pynsq_program.py"],
    "ansq": [sys.executable, FOLDER / "ansq_program.py"],
    "gnsq": [sys.executable, FOLDER / "gnsq_program.py"],
    "nsqjs": ["node", FOLDER / "nsqjs_program.js"],
}

ANSWERS = [{"command": command, "answer": "OK"} for command in ("PUB", "MPUB", "DPUB")]
PUBLISHED = ["later", "one", "three", "two"]

RunNsqd: TypeAlias = Callable[..., AbstractContextManager[Server]]


def client_program(client: str, role: str, **settings: object) -> AbstractContextManager[Program]:
    text = json.dumps({"topic": "topic", "channel": "channel", **settings})
    return run_client(*PROGRAMS[client], role, text)


def bodies_of(values: list[dict[str, Any]]) -> list[str]:
    return sorted(value["body"] for value in values)


def is_subscribed(nsqd: Server) -> bool:
    topics = nsqd.get("/stats?format=json")["topics"]
    return any(channel["clients"] for topic in topics for channel in topic["channels"])


def all_is_finished(nsqd: Server, count: int = 1) -> bool:
    """Return whether the channel has had ``count`` messages and holds none."""
    channel = nsqd.channel
    held = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
    return channel["message_count"] >= count and not held


@clients_with("publish")
def test_our_consumer_receives_messages_of_the_client(client: str, feature: str, broker: RunNsqd):
    async def consume(address: str) -> list[str]:
        with anyio.fail_after(WAIT_LIMIT):
            async with Consumer("topic", "channel", nsqd_tcp_addresses=[address], max_in_flight=4) as consumer:
                messages = [await anext(consumer) for _ in PUBLISHED]
                for message in messages:
                    message.finish()
        return [message.body.decode() for message in messages]

    with broker() as nsqd, client_program(client, "publish", nsqd=nsqd.tcp_address) as program:
        assert program.values(3) == ANSWERS
        assert sorted(anyio.run(consume, nsqd.tcp_address)) == PUBLISHED
        assert nsqd.topic["message_count"] == 4
        assert nsqd.publisher["user_agent"].startswith(f"{client}/")
        assert nsqd.publisher["pub_counts"] == [{"topic": "topic", "count": 4}]


@clients_with("subscribe")
def test_client_receives_messages_of_our_producer(client: str, feature: str, broker: RunNsqd):
    bodies = [f"body-{n:03}" for n in range(200)]

    async def publish(address: str) -> None:
        async with Producer(address) as producer:
            await producer.multi_publish("topic", [body.encode() for body in bodies[1:]])
            await producer.deferred_publish("topic", bodies[0].encode(), delay=0.001)

    with broker() as nsqd, client_program(client, "consume", nsqd=nsqd.tcp_address) as program:
        anyio.run(publish, nsqd.tcp_address)
        values = program.values(200)
        assert bodies_of(values) == bodies
        assert {value["attempts"] for value in values} == {1}
        until(lambda: all_is_finished(nsqd))
        (session,) = nsqd.channel["clients"]
        assert session["user_agent"].startswith(f"{client}/")
        assert session["finish_count"] == session["message_count"] == 200


@clients_with("requeue", "requeue-later")
def test_requeued_message_is_delivered_again(client: str, feature: str, broker: RunNsqd):
    with broker() as nsqd, client_program(client, "consume", nsqd=nsqd.tcp_address) as program:
        nsqd.post("/pub?topic=topic", feature)
        assert program.values(2) == [{"body": feature, "attempts": attempts} for attempts in (1, 2)]
        until(lambda: all_is_finished(nsqd))
        assert nsqd.channel["requeue_count"] == 1
        assert nsqd.channel["timeout_count"] == 0


@clients_with("timeout", "msg_timeout")
def test_message_that_times_out_is_delivered_again(client: str, feature: str, broker: RunNsqd):
    flags, settings = (["--msg-timeout=1s"], {}) if feature == "timeout" else ([], {"msg_timeout": 1})
    with (
        broker(*flags) as nsqd,
        client_program(client, "consume", nsqd=nsqd.tcp_address, **settings) as program,
    ):
        nsqd.post("/pub?topic=topic", "timeout")
        assert program.values(2) == [{"body": "timeout", "attempts": attempts} for attempts in (1, 2)]
        until(lambda: all_is_finished(nsqd))
        assert nsqd.channel["timeout_count"] >= 1
        assert nsqd.channel["requeue_count"] == 0


@clients_with("touch")
def test_touched_message_does_not_time_out(client: str, feature: str, broker: RunNsqd):
    """If the machine stalls, one message may time out, but not all of them."""
    with (
        broker("--msg-timeout=1s") as nsqd,
        client_program(client, "consume", nsqd=nsqd.tcp_address, msg_timeout=1),
    ):
        until(lambda: is_subscribed(nsqd))
        for count in range(1, 6):
            timeouts = nsqd.channel["timeout_count"]
            nsqd.post("/pub?topic=topic", feature)
            until(partial(all_is_finished, nsqd, count))
            if nsqd.channel["timeout_count"] == timeouts:
                return
    pytest.fail("each message timed out")


@clients_with("large", "deflate", "snappy", "tls", "tls+deflate", "tls+snappy", "certificate")
def test_messages_pass_through_layers(client: str, feature: str, broker: RunNsqd, certificates: Certificates):
    flags: list[str] = []
    settings: dict[str, Any] = {}
    if compression := next(iter({"deflate", "snappy"} & set(feature.split("+"))), None):
        settings["compression"] = compression
    if feature.startswith(("tls", "certificate")):
        flags += [f"--tls-cert={certificates.server}", f"--tls-key={certificates.server}"]
        flags += ["--tls-required=tcp-https", "--https-address=127.0.0.1:0"]
        settings["tls"] = {"ca_certs": certificates.ca}
    if feature == "certificate":
        flags += ["--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={certificates.ca}"]
        settings["tls"].update(certfile=certificates.client, keyfile=certificates.client)
    # One that compresses well, and one that does not; both far above the size of a TLS record and of a snappy chunk.
    large = ["x" * 200_000, "".join(random.Random(1).choices("0123456789abcdef", k=200_000))]
    large_feature = "large+compressed" if compression else "large"
    bodies = [*PUBLISHED, *(large if HAS[client][large_feature] else ["small"])]

    with (
        broker(*flags) as nsqd,
        client_program(client, "publish", nsqd=nsqd.tcp_address, **settings) as publisher,
        client_program(client, "consume", nsqd=nsqd.tcp_address, **settings) as consumer,
    ):
        assert publisher.values(3) == ANSWERS
        nsqd.post("/mpub?topic=topic", "\n".join(bodies[4:]))
        assert bodies_of(consumer.values(len(bodies))) == sorted(bodies)
        until(lambda: all_is_finished(nsqd))
        for session in (nsqd.publisher, *nsqd.channel["clients"]):
            assert session["tls"] == ("tls" in settings)
            assert session["deflate"] == (compression == "deflate")
            assert session["snappy"] == (compression == "snappy")


@clients_with("auth")
def test_client_authenticates(client: str, feature: str, broker: RunNsqd, auth_server: AuthServer):
    settings = {"secret": SECRET}
    with (
        broker(f"--auth-http-address={auth_server.address}", "--http-client-request-timeout=60s") as nsqd,
        client_program(client, "publish", nsqd=nsqd.tcp_address, **settings) as publisher,
        client_program(client, "consume", nsqd=nsqd.tcp_address, **settings) as consumer,
    ):
        assert publisher.values(3) == ANSWERS
        assert bodies_of(consumer.values(4)) == PUBLISHED
        until(lambda: all_is_finished(nsqd))
        for session in (nsqd.publisher, *nsqd.channel["clients"]):
            assert (session["authed"], session["auth_identity"]) == (True, "ali")
    for question in auth_server.asked:
        assert question["secret"] == [SECRET]
        assert question["remote_ip"] == ["127.0.0.1"]


@clients_with("lookupd")
def test_client_finds_the_broker(client: str, feature: str, broker: RunNsqd):
    with (
        run_nsqlookupd() as lookupd,
        broker(f"--lookupd-tcp-address={lookupd.tcp_address}") as nsqd,
    ):
        nsqd.post("/pub?topic=topic", "here")
        until(lambda: "topic" in lookupd.get("/topics")["topics"])
        with client_program(client, "consume", lookupd=lookupd.http_address) as program:
            assert program.values(1) == [{"body": "here", "attempts": 1}]
            until(lambda: all_is_finished(nsqd))
            (session,) = nsqd.channel["clients"]
            assert session["user_agent"].startswith(f"{client}/")
