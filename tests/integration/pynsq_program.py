"""A program that uses pynsq, as it comes from PyPI, for ``test_pynsq``.

    python pynsq_program.py publish ADDRESS TOPIC BODY …             PUB for each, the last one deferred, then an MPUB
    python pynsq_program.py consume ADDRESS TOPIC CHANNEL COUNT      prints "ATTEMPTS BODY" of each message

It is a process of its own because pynsq owns its event loop, and because the warnings of its import are not ours.
"""

from __future__ import annotations

import sys
from typing import Any

import nsq
from tornado.ioloop import IOLoop


def stop_unless_ok(conn: Any, data: Any) -> None:
    if data != b"OK":
        sys.exit(f"the broker answered {data!r}")


def publish(address: str, topic: str, *bodies: str) -> None:
    """Publish all bodies by PUB, all of them by one MPUB, and the first by DPUB."""
    encoded = [body.encode() for body in bodies]
    # The command that is answered last ends the program.
    waiting = {"count": len(encoded) + 2}

    def on_answer(conn: Any, data: Any) -> None:
        stop_unless_ok(conn, data)
        waiting["count"] -= 1
        if not waiting["count"]:
            IOLoop.current().stop()

    class Writer(nsq.Writer):  # type: ignore[misc]
        def on_connection_ready(self, conn: Any, *args: Any, **keywords: Any) -> None:
            super()._on_connection_ready(conn, *args, **keywords)

    def on_ready() -> None:
        if not writer.conns:
            IOLoop.current().call_later(0.01, on_ready)
            return
        for body in encoded:
            writer.pub(topic, body, callback=on_answer)
        writer.mpub(topic, encoded, callback=on_answer)
        writer.dpub(topic, 1, encoded[0], callback=on_answer)

    writer = Writer(nsqd_tcp_addresses=[address])
    on_ready()
    IOLoop.current().start()
