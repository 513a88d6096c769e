import asyncio

from nsqkit import Consumer, Producer


async def main() -> None:
    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"one")

    async with Consumer("orders", "billing", nsqd_tcp_addresses=["127.0.0.1:4150"]) as consumer:
        async for message in consumer:
            print(message.body)
            message.finish()
            break


asyncio.run(main())
