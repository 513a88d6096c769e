"""The client program on nsqkit: see ``assignment``. It publishes in two ways and consumes in three, each a mode."""

from __future__ import annotations

import anyio

from nsqkit import Consumer, Message, Producer
from nsqkit.producer.pool_connection import Receipt
from tests.benchmarks.programs.assignment import BODY, Assignment, Meter, read_assignment

CONCURRENCY = 8


async def publish(task: Assignment) -> None:
    async with Producer(task.address, linger=task.linger) as producer:
        bodies = [BODY] * task.batch

        async def work() -> None:
            for _ in range(task.commands_each):
                if task.batch > 1:
                    await producer.multi_publish(task.topic, bodies)
                else:
                    await producer.publish(task.topic, BODY)

        await producer.publish(task.topic, BODY)
        meter = Meter(task.count)
        async with anyio.create_task_group() as tasks:
            for _ in range(task.outstanding):
                tasks.start_soon(work)
        meter.report(task.commands_each * task.outstanding * task.batch)


async def publish_nowait(task: Assignment) -> None:
    """Publish without a task for each message: half of the outstanding publishes, then the answers to the rest."""
    half = task.outstanding // 2
    before: list[Receipt] = []
    async with Producer(task.address, linger=task.linger) as producer:
        await producer.publish(task.topic, BODY)
        meter = Meter(task.count)
        for _ in range(task.count // half):
            receipts = [producer.publish_nowait(task.topic, BODY) for _ in range(half)]
            for receipt in before:
                await receipt
            before = receipts
        for receipt in before:
            await receipt
        meter.report(task.count // half * half)


async def consume(task: Assignment) -> None:
    meter = Meter(task.count)
    async with Consumer(
        task.topic, "channel", nsqd_tcp_addresses=[task.address], max_in_flight=task.max_in_flight
    ) as consumer:

        def handle(message: Message) -> None:
            if meter.take():
                meter.report()
                consumer.stop()

        async def handle_async(message: Message) -> None:
            handle(message)

        if task.mode == "consume-sync":
            await consumer.run(handle)
        elif task.mode == "consume-async":
            await consumer.run(handle_async, concurrency=CONCURRENCY)
        else:
            async for batch in consumer.batches():
                batch.finish()
                if meter.take(len(batch)):
                    meter.report()
                    consumer.stop()


async def latency(task: Assignment) -> None:
    meter = Meter(task.count)
    async with (
        Producer(task.address) as producer,
        Consumer(
            task.topic, "channel", nsqd_tcp_addresses=[task.address], max_in_flight=task.max_in_flight
        ) as consumer,
        anyio.create_task_group() as tasks,
    ):
        arrived = anyio.Event()

        def handle(message: Message) -> None:
            if meter.arrived():
                consumer.stop()
            arrived.set()

        async def work() -> None:
            nonlocal arrived
            while True:
                arrived = anyio.Event()
                meter.sent()
                await producer.publish(task.topic, BODY)
                await arrived.wait()

        tasks.start_soon(work)
        await consumer.run(handle)
        tasks.cancel_scope.cancel()
    meter.report_latency()


if __name__ == "__main__":
    given = read_assignment()
    work = {"publish": publish, "publish-nowait": publish_nowait, "latency": latency}.get(given.mode, consume)
    anyio.run(work, given, backend_options={"use_uvloop": given.loop == "uvloop"})
