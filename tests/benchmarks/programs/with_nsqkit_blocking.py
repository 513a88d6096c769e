"""The client program on nsqkit without ``await``: see ``assignment``. It has no mode for latency."""

from __future__ import annotations

import sys

from nsqkit import BlockingConsumer, BlockingMessage, BlockingProducer
from tests.benchmarks.programs.assignment import BODY, Assignment, Meter, read_assignment


def publish(task: Assignment) -> None:
    """One thread, which waits for each answer."""
    with BlockingProducer(task.address) as producer:
        bodies = [BODY] * task.batch
        producer.publish(task.topic, BODY)
        meter = Meter(task.count)
        for _ in range(task.commands_each):
            if task.batch > 1:
                producer.multi_publish(task.topic, bodies)
            else:
                producer.publish(task.topic, BODY)
        meter.report(task.commands_each * task.batch)


def consume(task: Assignment) -> None:
    meter = Meter(task.count)
    with BlockingConsumer(
        task.topic, "channel", nsqd_tcp_addresses=[task.address], max_in_flight=task.max_in_flight
    ) as consumer:

        def handle(message: BlockingMessage) -> None:
            if meter.take():
                meter.report()
                consumer.stop()

        consumer.run(handle)


if __name__ == "__main__":
    given = read_assignment()
    if given.loop == "asyncio":
        sys.modules["uvloop"] = None  # type: ignore[assignment]  # as if it were not installed
    {"publish": publish, "consume": consume}[given.mode](given)
