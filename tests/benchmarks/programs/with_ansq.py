"""The client program on ansq: see ``assignment``."""

from __future__ import annotations

import asyncio
import logging

import ansq

from tests.benchmarks.programs.assignment import BODY, Assignment, Meter, read_assignment


async def publish(task: Assignment) -> None:
    writer = await ansq.create_writer([task.address])

    async def work() -> None:
        for _ in range(task.commands_each):
            if task.batch > 1:
                answer = await writer.mpub(task.topic, *[BODY] * task.batch)
            else:
                answer = await writer.pub(task.topic, BODY)
            assert answer.is_ok, answer

    await writer.pub(task.topic, BODY)
    meter = Meter(task.count)
    await asyncio.gather(*[work() for _ in range(task.outstanding)])
    meter.report(task.commands_each * task.outstanding * task.batch)
    await writer.close()


async def make_reader(task: Assignment) -> ansq.tcp.reader.Reader:
    reader = await ansq.create_reader(task.topic, "channel", nsqd_tcp_addresses=[task.address])
    for connection in reader.connections:  # RDY is 1 by default
        await connection.rdy(task.max_in_flight)
    return reader


async def consume(task: Assignment) -> None:
    meter = Meter(task.count)
    reader = await make_reader(task)
    async for message in reader.messages():
        await message.fin()
        if meter.take():
            meter.report()
            break
    await reader.close()


async def latency(task: Assignment) -> None:
    meter = Meter(task.count)
    writer = await ansq.create_writer([task.address])
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
    await reader.close()
    await writer.close()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    given = read_assignment()
    asyncio.run({"publish": publish, "consume": consume, "latency": latency}[given.mode](given))
