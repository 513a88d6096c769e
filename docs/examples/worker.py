import asyncio
import signal

from nsqkit import Consumer, Message


async def handle(message: Message) -> None:
    print(message.body, message.attempts, flush=True)


async def main() -> None:
    async with Consumer(
        "orders",
        "billing",
        nsqd_tcp_addresses=["127.0.0.1:4150"],
        stop_signals=[signal.SIGTERM, signal.SIGINT],
    ) as consumer:
        await consumer.run(handle, concurrency=8)


if __name__ == "__main__":
    asyncio.run(main())
