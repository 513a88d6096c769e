import asyncio

from nsqkit import Producer


async def main() -> None:
    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"one")
        await producer.multi_publish("orders", [b"two", b"three"])
        await producer.deferred_publish("orders", b"later", delay=30.0)


if __name__ == "__main__":
    asyncio.run(main())
