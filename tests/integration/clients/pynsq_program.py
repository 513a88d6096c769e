"""A program that uses pynsq as it comes from PyPI; ``test_clients`` describes its settings and its output.

It is a separate process because pynsq owns its event loop, and because the warnings of its import are not nsqkit's.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import nsq
from tornado.ioloop import IOLoop

DEEDS = ("requeue", "requeue-later", "timeout", "touch")


def report(**value: object) -> None:
    print(json.dumps(value), flush=True)


def connection_options(settings: dict[str, Any]) -> dict[str, Any]:
    compression, tls = settings.get("compression"), settings.get("tls")
    return {
        "deflate": compression == "deflate",
        "snappy": compression == "snappy",
        "tls_v1": bool(tls),
        "tls_options": tls,
        "auth_secret": settings.get("secret"),
        "msg_timeout": settings.get("msg_timeout"),
    }


def publish(settings: dict[str, Any]) -> None:
    loop, topic = IOLoop.current(), settings["topic"]
    writer = nsq.Writer([settings["nsqd"]], reconnect_interval=1.0, **connection_options(settings))
    commands = {
        "PUB": partial(writer.pub, topic, b"one"),
        "MPUB": partial(writer.mpub, topic, [b"two", b"three"]),
        "DPUB": partial(writer.dpub, topic, 1, b"later"),
    }

    def send_next() -> None:
        if commands:
            commands[next(iter(commands))](callback=on_answer)

    def on_answer(conn: Any, data: Any) -> None:
        if isinstance(data, nsq.protocol.SendError):
            loop.call_later(0.01, send_next)  # there is no connection yet, and pynsq has no event for it
            return
        command = next(iter(commands))
        del commands[command]
        report(command=command, answer=str(data) if isinstance(data, Exception) else data.decode())
        send_next()

    loop.add_callback(send_next)


def consume(settings: dict[str, Any]) -> None:
    loop = IOLoop.current()

    def handle(message: Any) -> bool:
        body = message.body.decode()
        report(body=body, attempts=message.attempts)
        if message.attempts == 1 and body in DEEDS:
            message.enable_async()
        if message.is_async() and body == "requeue":
            message.requeue(delay=0, backoff=False)
        if message.is_async() and body == "requeue-later":
            message.requeue(time_ms=100, backoff=False)
        if message.is_async() and body == "touch":
            for seconds in (0.3, 0.6, 0.9, 1.2):
                loop.call_later(seconds, message.touch)
            loop.call_later(1.5, message.finish)
        return True

    nsq.Reader(
        settings["topic"],
        settings["channel"],
        handle,
        nsqd_tcp_addresses=settings.get("nsqd"),
        lookupd_http_addresses=settings.get("lookupd"),
        lookupd_poll_interval=1,
        max_in_flight=3,
        **connection_options(settings),
    )


if __name__ == "__main__":
    {"publish": publish, "consume": consume}[sys.argv[1]](json.loads(sys.argv[2]))
    IOLoop.current().start()
