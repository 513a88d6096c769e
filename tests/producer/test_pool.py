from __future__ import annotations

import anyio
import pytest

from nsqkit import Producer
from nsqkit.errors import ConnectionLost
from nsqkit.producer import pool as pool_module
from nsqkit.wire.frames import OK_FRAME
from tests.peers import ADDRESS, BACKENDS, Peer, ScriptedBroker, settle
from tests.producer.stage import Call, pool

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]


async def test_every_nsqd_has_a_connection_that_is_made_again():
    async with pool(3) as stage:
        peers = await stage.handshake()
        assert all(nsqd.is_connected for nsqd in stage.producer.stats().nsqds)
        await peers[1].close()
        await settle()
        assert [nsqd.is_connected for nsqd in stage.producer.stats().nsqds] == [True, False, True]
        assert isinstance(stage.producer.stats().nsqds[1].error, ConnectionLost)
        stage.clock.advance(1)
        await stage.brokers[1].handshake()
        await settle()
        assert stage.producer.stats().nsqds[1].is_connected
        assert stage.producer.stats().nsqds[1].error is None


async def test_messages_that_linger_are_sent_and_answered_at_the_end():
    async with anyio.create_task_group() as tasks:
        broker = ScriptedBroker()
        calls = [Call() for _ in range(3)]
        async with Producer(ADDRESS, dial=broker.dial, linger=60) as producer:
            peer = await broker.handshake()
            await settle()
            for call in calls:
                tasks.start_soon(call.run, producer.publish, "t", b"x")
                await settle()
            tasks.start_soon(answer_two, peer)
        assert all(call.succeeded for call in calls)


async def answer_two(peer: Peer) -> None:
    assert await peer.command() == (b"PUB t", b"x")
    line, _ = await peer.command()
    assert line == b"MPUB t"
    await peer.send(OK_FRAME * 2)
    await peer.wait_end()
    await peer.close()


async def test_end_does_not_wait_for_cancelled_publishes(monkeypatch):
    monkeypatch.setattr(pool_module, "DRAIN_TIMEOUT", 3600.0)
    async with anyio.create_task_group() as tasks:
        broker = ScriptedBroker()
        with anyio.fail_after(15):
            async with Producer(ADDRESS, dial=broker.dial) as producer:
                peer = await broker.handshake()
                await settle()
                with anyio.move_on_after(0.01):
                    await producer.publish("t", b"x")
                tasks.start_soon(leave, peer)


async def leave(peer: Peer) -> None:
    await peer.command()
    await peer.wait_end()
    await peer.close()
