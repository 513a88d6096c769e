"""A consumer that runs for long, and reports its progress.

It is started with an ``Assignment``: it consumes ``count`` messages of its topic from ``outstanding`` nsqds, which are
at the addresses 127.0.0.1, 127.0.0.2 … with the port of ``address``. It prints the number of consumed messages: when it
has connected to all, and after each ``batch`` messages; after each such line it waits for a line on stdin.
"""

from __future__ import annotations

import sys

import anyio

from nsqkit import Consumer, Message
from tests.benchmarks.programs.assignment import Assignment, read_assignment


def tell(count: int) -> None:
    print(count, flush=True)
    sys.stdin.readline()


async def stay(task: Assignment) -> None:
    port = task.address.rpartition(":")[2]
    addresses = [f"127.0.0.{number}:{port}" for number in range(1, task.outstanding + 1)]
    count = 0

    def handle(message: Message) -> None:
        nonlocal count
        count += 1
        if count % task.batch == 0:
            tell(count)
        if count == task.count:
            consumer.stop()

    async with Consumer(
        task.topic, "channel", nsqd_tcp_addresses=addresses, max_in_flight=task.max_in_flight
    ) as consumer:
        await consumer.wait_connected()
        tell(count)
        if task.count:
            await consumer.run(handle)


if __name__ == "__main__":
    given = read_assignment()
    anyio.run(stay, given, backend_options={"use_uvloop": given.loop == "uvloop"})
