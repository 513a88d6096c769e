"""A program that uses gnsq as it comes from PyPI; ``test_clients`` describes its settings and its output.

It is a separate process because gevent owns its event loop, and because the warnings of its import are not nsqkit's.
"""

from __future__ import annotations

import json
import ssl
import sys
from typing import Any

import gevent
import gnsq

DEEDS = ("requeue", "requeue-later", "timeout", "touch")


def report(**value: object) -> None:
    print(json.dumps(value), flush=True)


def connection_options(settings: dict[str, Any]) -> dict[str, Any]:
    compression, tls = settings.get("compression"), settings.get("tls")
    return {
        "deflate": compression == "deflate",
        "snappy": compression == "snappy",
        "tls_v1": bool(tls),
        "tls_options": tls and {"cert_reqs": ssl.CERT_REQUIRED, **tls},
        "auth_secret": settings.get("secret", "").encode(),
    }


def publish(settings: dict[str, Any]) -> None:
    topic, options = settings["topic"], connection_options(settings)
    if "tls" in settings or "compression" in settings:
        publish_over_upgraded_connection(settings["nsqd"], topic, options)
        return
    producer = gnsq.Producer(settings["nsqd"], **options)
    producer.start()
    report(command="PUB", answer=producer.publish(topic, b"one").decode())
    report(command="MPUB", answer=producer.multipublish(topic, [b"two", b"three"]).decode())
    report(command="DPUB", answer=producer.publish(topic, b"later", defer=1).decode())
    producer.join()


def connect(nsqd: str, options: dict[str, Any]) -> gnsq.NsqdTCPClient:
    """Return a connection that is ready; try again after a failure, as a ``Producer`` does."""
    host, port = nsqd.split(":")
    while True:
        connection = gnsq.NsqdTCPClient(host, int(port), **options)
        try:
            connection.connect()
            connection.identify()
        except gnsq.errors.NSQSocketError as error:
            print(error, file=sys.stderr)
            gevent.sleep(1)
        else:
            return connection


def publish_over_upgraded_connection(nsqd: str, topic: str, options: dict[str, Any]) -> None:
    """Publish without a ``Producer``, which would read the OK of an upgrade as that of a PUB."""
    connection = connect(nsqd, options)

    def report_answer(command: str) -> None:
        report(command=command, answer=connection.read_response()[1].decode())

    connection.publish(topic, b"one")
    report_answer("PUB")
    connection.multipublish(topic, [b"two", b"three"])
    report_answer("MPUB")
    connection.publish(topic, b"later", defer=1)
    report_answer("DPUB")
    connection.listen()


def consume(settings: dict[str, Any]) -> None:
    def handle(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        body = message.body.decode()
        report(body=body, attempts=message.attempts)
        if message.attempts == 1 and body in DEEDS:
            message.enable_async()
        if message.is_async() and body == "requeue":
            message.requeue(0, backoff=False)
        if message.is_async() and body == "requeue-later":
            message.requeue(100, backoff=False)
        if message.is_async() and body == "touch":
            for seconds in (0.3, 0.6, 0.9, 1.2):
                gevent.spawn_later(seconds, message.touch)
            gevent.spawn_later(1.5, message.finish)

    consumer = gnsq.Consumer(
        settings["topic"],
        settings["channel"],
        settings.get("nsqd", []),
        settings.get("lookupd", []),
        message_handler=handle,
        lookupd_poll_interval=1,
        max_in_flight=3,
        **connection_options(settings),
    )
    consumer.start()


if __name__ == "__main__":
    {"publish": publish, "consume": consume}[sys.argv[1]](json.loads(sys.argv[2]))
