"""The client program on pynsq: see ``assignment``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import nsq
import tornado.ioloop
import tornado.locks

from tests.benchmarks.programs.assignment import BODY, Assignment, Meter, read_assignment


class Writer(nsq.Writer):  # type: ignore[misc]
    """A writer that reports when it is connected."""

    def __init__(self, address: str, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready
        super().__init__([address])

    def _on_connection_ready(self, conn: Any, **kwargs: Any) -> None:
        super()._on_connection_ready(conn, **kwargs)
        self._on_ready()


def make_reader(task: Assignment, handle: Callable[[Any], bool]) -> nsq.Reader:
    return nsq.Reader(
        topic=task.topic,
        channel="channel",
        nsqd_tcp_addresses=[task.address],
        message_handler=handle,
        max_in_flight=task.max_in_flight,
    )


def publish(task: Assignment, stop: Callable[[], None]) -> None:
    meter = Meter(task.count)
    count = task.commands_each * task.outstanding
    sent = 0
    answered = 0

    def send() -> None:
        nonlocal sent
        sent += 1
        if task.batch > 1:
            writer.mpub(task.topic, [BODY] * task.batch, on_answer)
        else:
            writer.pub(task.topic, BODY, on_answer)

    def on_answer(conn: Any, data: Any) -> None:
        nonlocal answered
        check(data)
        answered += 1
        if answered == count:
            meter.report(count * task.batch)
            stop()
        elif sent < count:
            send()

    def on_first_answer(conn: Any, data: Any) -> None:
        check(data)
        meter.start()
        for _ in range(task.outstanding):
            send()

    writer = Writer(task.address, lambda: writer.pub(task.topic, BODY, on_first_answer))


def check(data: Any) -> None:
    if data != b"OK":
        raise SystemExit(f"pynsq was answered {data!r}")


def consume(task: Assignment, stop: Callable[[], None]) -> None:
    meter = Meter(task.count)

    def handle(message: Any) -> bool:
        if meter.take():
            meter.report()
            stop()
        return True

    make_reader(task, handle)


def latency(task: Assignment, stop: Callable[[], None]) -> None:
    meter = Meter(task.count)

    def send() -> None:
        meter.sent()
        writer.pub(task.topic, BODY, lambda conn, data: check(data))

    def handle(message: Any) -> bool:
        if meter.arrived():
            meter.report_latency()
            stop()
        else:
            loop.add_callback(send)
        return True

    loop = tornado.ioloop.IOLoop.current()
    writer = Writer(task.address, send)
    make_reader(task, handle)


async def main(given: Assignment) -> None:
    finished = tornado.locks.Event()
    {"publish": publish, "consume": consume, "latency": latency}[given.mode](given, finished.set)
    await finished.wait()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    tornado.ioloop.IOLoop.current().run_sync(lambda: main(read_assignment()))
