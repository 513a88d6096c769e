"""Replaces nsqd by nsqkit and back, on one data path and under load: the steps of docs/operating.md.

Without ``--nsqd-binary``, nsqkit stands in for nsqd, in this process and as a process.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path

import anyio.to_thread
import pytest
from anyio.abc import ByteStream

from nsqkit import Consumer, Message, NsqdAdmin, Producer
from nsqkit.errors import NSQError
from nsqkit.transport.tcp import connect
from tests.answering import PATIENT
from tests.integration.anywhere.clients import CHANNEL, consuming, producing, running, until
from tests.integration.anywhere.servers import PROCESS, WAIT_LIMIT, Kind, Server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * WAIT_LIMIT)]

COUNT = 300
"""Messages that are handled with each program."""

ARCHIVE = "archive"
"""A channel without a consumer until the end, so its messages pass from program to program."""

in_thread = anyio.to_thread.run_sync  # so that the clients keep running meanwhile


class Load:
    """A producer and a consumer that run all the time, and what they published and handled.

    Attributes:
        current: the program that runs now.
        published: bodies that nsqd acknowledged.
        handled: bodies that were delivered, by channel.
    """

    def __init__(self, first: Server, topic: str) -> None:
        self.current = first
        self.published: set[bytes] = set()
        self.handled: dict[str, set[bytes]] = {CHANNEL: set(), ARCHIVE: set()}
        self.is_over = False
        self._topic = topic

    async def dial(self, address: str) -> ByteStream:
        return await connect(self.current.tcp_address)

    async def publish(self, producer: Producer) -> None:
        for number in count():
            body = b"%d" % number
            while body not in self.published:
                try:
                    await producer.publish(self._topic, body)
                    self.published.add(body)
                except NSQError:  # the program ended before it answered
                    await producer.wait_connected()
            if self.is_over:
                return

    def handling(self, consumer: Consumer, channel: str) -> AbstractAsyncContextManager[None]:
        def handle(message: Message) -> None:
            self.handled[channel].add(message.body)

        return running(consumer, handle)

    async def take_turn(self, program: Server) -> None:
        """Stop the running program, and return when the next one has served both clients."""
        if program is not self.current:
            await in_thread(self.current.stop)
            self.current = program
            await in_thread(program.start)
        enough = len(self.handled[CHANNEL]) + COUNT
        await until(lambda: len(self.handled[CHANNEL]) >= enough)


async def test_no_message_is_lost_while_programs_replace_each_other(
    kinds: tuple[Kind, Kind], topic: str, tmp_path: Path
):
    there, here = kinds[0], Kind(PROCESS)
    programs = [kind.nsqd(tmp_path, "--mem-queue-size=10") for kind in (there, here, there)]
    load = Load(programs[0], topic)
    await in_thread(load.current.start)
    try:
        admin = NsqdAdmin(load.current.http_address, **PATIENT)
        await admin.create_topic(topic)
        for channel in load.handled:  # before the first message
            await admin.create_channel(topic, channel)
        async with (
            producing(load.current, dial=load.dial) as producer,
            consuming(topic, load.current, dial=load.dial) as consumer,
            load.handling(consumer, CHANNEL),
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load.publish, producer)
                for program in programs:
                    await load.take_turn(program)
                load.is_over = True
            await until(lambda: load.handled[CHANNEL] >= load.published)
        async with (
            consuming(topic, load.current, channel=ARCHIVE) as consumer,
            load.handling(consumer, ARCHIVE),
        ):
            await until(lambda: load.handled[ARCHIVE] >= load.published)
    finally:
        await in_thread(load.current.stop)
