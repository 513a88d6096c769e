from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from nsqkit.consumer.message import Message
from nsqkit.consumer.thread_message import ThreadMessage
from nsqkit.errors import MessageError
from tests.consumer.test_consumer import consuming, fin
from tests.peers import body_of, message_id

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # a clock that jumps would not wait for a thread
async def test_thread_message_is_the_same_delivery():
    def use(message: Message) -> None:
        assert (message.id, message.body, message.attempts) == (message_id(1), body_of(1), 1)
        assert (message.topic, message.channel, message.value) == ("t", "c", body_of(1))
        assert not message.is_answered
        before = message.time_left
        message.touch()
        assert message.time_left >= before > 0
        message.finish()
        assert message.is_answered
        with pytest.raises(MessageError):
            message.requeue()

    async with consuming() as (consumer, peer):
        await peer.deliver(1)
        message = await anext(consumer)
        await anyio.to_thread.run_sync(use, ThreadMessage(message))
        assert message.is_answered
        assert [await peer.line(), await peer.line()] == [b"TOUCH " + message_id(1), fin(1)]
