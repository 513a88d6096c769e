"""The client program on asyncnsq 1.x: see ``assignment``."""

from __future__ import annotations

import asyncio
import logging

import asyncnsq

from tests.benchmarks.programs.assignment import BODY, Assignment, Meter, read_assignment


async def make_writer(task: Assignment) -> asyncnsq.tcp.writer.Writer:
    host, port = task.address.rsplit(":", 1)
    return await asyncnsq.create_writer(host=host, port=int(port))


async def publish(task: Assignment) -> None:
    writer = await make_writer(task)

    async def work() -> None:
        for _ in range(task.commands_each):
            if task.batch > 1:
                answer = await writer.mpub(task.topic, *[BODY] * task.batch)
            else:
                answer = await writer.pub(task.topic, BODY)
            assert answer == b"OK", answer

    await writer.pub(task.topic, BODY)
    meter = Meter(task.count)
    await asyncio.gather(*[work() for _ in range(task.outstanding)])
    meter.report(task.commands_each * task.outstanding * task.batch)
    writer.close()


async def make_reader(task: Assignment) -> asyncnsq.tcp.reader.Reader:
    reader = await asyncnsq.create_reader([task.address], max_in_flight=task.max_in_flight)
    await reader.subscribe(task.topic, "channel")
    return reader


async def consume(task: Assignment) -> None:
    meter = Meter(task.count)
    reader = await make_reader(task)
    async for message in reader.messages():
        await message.fin()
        if meter.take():
            meter.report()
            break
    reader.close()


async def latency(task: Assignment) -> None:
    meter = Meter(task.count)
    writer = await make_writer(task)
    reader = await make_reader(task)

    async def send() -> None:
        meter.sent()
        await writer.pub(task.topic, BODY)

    sending = asyncio.create_task(send())
    async for message in reader.messages():
        is_last = meter.arrived()
        await message.fin()
        await sending
        if is_last:
            meter.report_latency()
            break
        sending = asyncio.create_task(send())
    reader.close()
    writer.close()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    given = read_assignment()
    asyncio.run({"publish": publish, "consume": consume, "latency": latency}[given.mode](given))
