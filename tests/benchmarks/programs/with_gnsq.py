"""The client program on gnsq: see ``assignment``."""

from __future__ import annotations

import logging
from typing import Any

import gevent
import gnsq

from tests.benchmarks.programs.assignment import BODY, Assignment, Meter, read_assignment


def publish(task: Assignment) -> None:
    producer = gnsq.Producer(task.address)
    producer.start()

    def work() -> None:
        for _ in range(task.commands_each):
            if task.batch > 1:
                producer.multipublish(task.topic, [BODY] * task.batch)
            else:
                producer.publish(task.topic, BODY)

    producer.publish(task.topic, BODY)
    meter = Meter(task.count)
    gevent.joinall([gevent.spawn(work) for _ in range(task.outstanding)], raise_error=True)
    meter.report(task.commands_each * task.outstanding * task.batch)
    producer.close()


def make_consumer(task: Assignment) -> gnsq.Consumer:
    return gnsq.Consumer(task.topic, "channel", task.address, max_in_flight=task.max_in_flight)


def consume(task: Assignment) -> None:
    meter = Meter(task.count)
    consumer = make_consumer(task)

    def handle(sender: Any, message: Any) -> None:
        if meter.take():
            meter.report()
            gevent.spawn(consumer.close)

    consumer.on_message.connect(handle)
    consumer.start()


def latency(task: Assignment) -> None:
    meter = Meter(task.count)
    producer = gnsq.Producer(task.address)
    producer.start()
    consumer = make_consumer(task)

    def send() -> None:
        meter.sent()
        producer.publish(task.topic, BODY)

    def handle(sender: Any, message: Any) -> None:
        if meter.arrived():
            meter.report_latency()
            gevent.spawn(consumer.close)
        else:
            gevent.spawn(send)

    consumer.on_message.connect(handle)
    gevent.spawn(send)
    consumer.start()
    producer.close()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    given = read_assignment()
    {"publish": publish, "consume": consume, "latency": latency}[given.mode](given)
