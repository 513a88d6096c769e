"""A program that uses pynsq as it comes from PyPI, for ``test_pynsq``.

    python pynsq_program.py publish ADDRESS TOPIC BODY …           PUB of each, then MPUB of all and DPUB of the first
    python pynsq_program.py consume ADDRESS TOPIC CHANNEL COUNT    finishes COUNT messages, prints "ATTEMPTS BODY"

It is a process of its own because pynsq owns its event loop, and because the warnings of its import are not ours.
A body ``again`` is requeued when it comes for the first time; each message is touched before it is finished.
"""

from __future__ import annotations

import sys
from typing import Any

import nsq
from tornado.ioloop import IOLoop


def publish(address: str, topic: str, *bodies: str) -> None:
    """Publish, and return when the broker has answered all of it."""
    loop = IOLoop.current()
    writer = nsq.Writer([address])
    first, *others = [body.encode() for body in bodies]
    waiting = len(others) + 2

    def on_first_answer(conn: Any, data: Any) -> None:
        if isinstance(
            data, nsq.protocol.SendError
        ):  # there is no connection yet, and nothing tells when there is
            loop.call_later(0.01, writer.pub, topic, first, on_first_answer)
            return
        check(data)
        for body in others:
            writer.pub(topic, body, on_answer)
        writer.mpub(topic, [first, *others], on_answer)
        writer.dpub(topic, 1, first, on_answer)

    def on_answer(conn: Any, data: Any) -> None:
        nonlocal waiting
        check(data)
        waiting -= 1
        if not waiting:
            loop.stop()

    writer.pub(topic, first, on_first_answer)
    loop.start()


def check(data: Any) -> None:
    if data != b"OK":
        sys.exit(f"the broker answered {data!r}")


def consume(address: str, topic: str, channel: str, count: str) -> None:
    """Finish ``count`` messages."""
    loop = IOLoop.current()
    finished = 0

    def handle(message: Any) -> bool | None:
        nonlocal finished
        if message.body == b"again" and message.attempts == 1:
            message.enable_async()
            message.requeue(delay=0, backoff=False)
            return None
        message.touch()
        print(message.attempts, message.body.decode())
        finished += 1
        if finished == int(count):
            loop.add_callback(loop.stop)  # after the FIN, which follows the return
        return True

    nsq.Reader(topic, channel, handle, nsqd_tcp_addresses=[address], max_in_flight=3)
    loop.start()


if __name__ == "__main__":
    (publish if sys.argv[1] == "publish" else consume)(*sys.argv[2:])
