"""A consumer that stays for long, and tells how much memory its process has.

It is started with an ``Assignment``: it consumes ``count`` messages of its topic from ``outstanding`` nsqds, which are
at the addresses 127.0.0.1, 127.0.0.2 … with the port of ``address``. First it prints its memory when it has connected
to all, then after each ``batch`` messages: a line of JSON each.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio

from nsqkit import Consumer, Message
from tests.benchmarks.programs.assignment import Assignment, read_assignment


def tell_memory() -> None:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    print(json.dumps({"MB": int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6}), flush=True)


async def stay(task: Assignment) -> None:
    port = task.address.rpartition(":")[2]
    addresses = [f"127.0.0.{number}:{port}" for number in range(1, task.outstanding + 1)]
    count = 0

    def handle(message: Message) -> None:
        nonlocal count
        count += 1
        if count % task.batch == 0:
            tell_memory()
        if count == task.count:
            consumer.stop()

    async with Consumer(
        task.topic, "channel", nsqd_tcp_addresses=addresses, max_in_flight=task.max_in_flight
    ) as consumer:
        await consumer.wait_connected()
        tell_memory()
        if task.count:
            await consumer.run(handle)


if __name__ == "__main__":
    given = read_assignment()
    anyio.run(stay, given, backend_options={"use_uvloop": given.loop == "uvloop"})
