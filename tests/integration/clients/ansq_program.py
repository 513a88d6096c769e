"""A program that uses ansq as it comes from PyPI; ``test_clients`` describes its settings and its output.

It is a separate process like those of the other clients, also because the warnings of its import are not nsqkit's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

import ansq
from ansq.tcp.types import ConnectionFeatures, ConnectionOptions

DEEDS = ("requeue", "requeue-later", "timeout", "touch")


def report(**value: object) -> None:
    print(json.dumps(value), flush=True)


def connection_options(settings: dict[str, Any]) -> ConnectionOptions:
    msg_timeout = settings.get("msg_timeout", 60) * 1_000
    return ConnectionOptions(features=ConnectionFeatures(msg_timeout=msg_timeout))


async def publish(settings: dict[str, Any]) -> None:
    topic = settings["topic"]
    writer = await ansq.create_writer([settings["nsqd"]], connection_options(settings))
    report(command="PUB", answer=(await writer.pub(topic, b"one")).text)
    report(command="MPUB", answer=(await writer.mpub(topic, b"two", b"three")).text)
    report(command="DPUB", answer=(await writer.dpub(topic, b"later", 1)).text)
    await asyncio.Event().wait()


async def consume(settings: dict[str, Any]) -> None:
    reader = await ansq.create_reader(
        settings["topic"],
        settings["channel"],
        nsqd_tcp_addresses=[settings["nsqd"]] if "nsqd" in settings else None,
        lookupd_http_addresses=[settings["lookupd"]] if "lookupd" in settings else None,
        lookupd_poll_interval=1_000,
        connection_options=connection_options(settings),
    )
    async for message in reader.messages():
        body = message.body.decode()
        report(body=body, attempts=message.attempts)
        # ansq refuses to answer a message that has timed out; the broker sends it again.
        with contextlib.suppress(RuntimeWarning):
            await handle(message, body)


async def handle(message: ansq.tcp.types.NSQMessage, body: str) -> None:
    if message.attempts > 1 or body not in DEEDS:
        await message.fin()
    elif body == "requeue":
        await message.req(0)
    elif body == "requeue-later":
        await message.req(100)
    elif body == "touch":
        for _ in range(4):
            await asyncio.sleep(0.3)
            await message.touch()
        await asyncio.sleep(0.3)
        await message.fin()


if __name__ == "__main__":
    asyncio.run({"publish": publish, "consume": consume}[sys.argv[1]](json.loads(sys.argv[2])))
