from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from nsqkit import Producer
from nsqkit.clock import ManualClock
from nsqkit.errors import (
    BrokerError,
    Closed,
    ConnectionLost,
    DeferredPublishFailed,
    FinishFailed,
    MultiPublishFailed,
    NotConnected,
    PublishFailed,
    PublishTimeout,
    Unauthorized,
    WouldWait,
)
from nsqkit.wire.frames import OK_FRAME
from tests.cancelling import CancelledAt
from tests.peers import ADDRESS, BACKENDS, WAIT_LIMIT, Peer, ScriptedBroker, settle
from tests.producer.stage import Call, PlayingBroker, pool

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]


async def finish(*peers: Peer) -> None:
    for peer in peers:
        await peer.close()


# ---- a pool ------------------------------------------------------------------------------------------------------


async def test_policy_chooses_the_nsqd():
    async with pool(3) as stage, anyio.create_task_group() as tasks:
        peers = await stage.handshake()
        for n in range(6):
            tasks.start_soon(stage.producer.publish, "t", b"%d" % n)
            assert await peers[n % 3].command() == (b"PUB t", b"%d" % n)
            await peers[n % 3].send(OK_FRAME)
        await settle()
        assert [nsqd.message_count for nsqd in stage.producer.stats().nsqds] == [2, 2, 2]
        await finish(*peers)


async def test_the_same_key_goes_to_the_same_nsqd():
    async with pool(3, policy="by-key") as stage, anyio.create_task_group() as tasks:
        peers = await stage.handshake()
        for key in ("user-1", b"user-1", "user-1"):
            tasks.start_soon(partial(stage.producer.publish, "t", b"x", key=key))
        await settle()
        assert sorted(nsqd.outstanding_count for nsqd in stage.producer.stats().nsqds) == [0, 0, 3]
        for peer, nsqd in zip(peers, stage.producer.stats().nsqds, strict=True):
            await peer.send(OK_FRAME * nsqd.outstanding_count)
        await settle()
        await finish(*peers)


async def test_publish_uses_the_first_nsqd_that_is_connected():
    async with pool(2) as stage, anyio.create_task_group() as tasks:
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        await settle()
        assert stage.producer.stats().waiting_count == 1
        async with await stage.brokers[1].handshake() as peer:
            assert await peer.command() == (b"PUB t", b"x")
            await peer.send(OK_FRAME)
            await settle()
            assert call.succeeded


async def test_not_connected_names_all_nsqds():
    async with pool(2, connect_timeout=0.01) as stage:
        stage.brokers[1].refusal = ConnectionRefusedError("no")
        stage.brokers[0].hanging = True
        async with anyio.create_task_group() as tasks:
            call = Call()
            tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
            await settle()
            assert not call.done
            stage.clock.advance(0.01)
            await call.wait()
        assert isinstance(call.error, NotConnected)
        assert "no connection to nsqd-0:4150 or nsqd-1:4150 within 0.01" in str(call.error)
        assert "no" in str(call.error.__cause__)


async def test_broker_that_does_not_read_is_not_reported_as_missing():
    async with pool(1, connect_timeout=0.01, write_timeout=300) as stage, anyio.create_task_group() as tasks:
        (peer,) = await stage.handshake()
        for _ in range(40):  # one write each, until the peer is full and the outbox, too
            tasks.start_soon(Call().run, stage.producer.publish, "t", bytes(1 << 20))
            await settle()
        late = Call()
        tasks.start_soon(late.run, stage.producer.publish, "t", b"x")
        await settle()
        stage.clock.advance(0.01)
        await late.wait()
        error = late.error
        assert isinstance(error, NotConnected)
        assert "did not take any more within" in str(error)
        await peer.close()
        tasks.cancel_scope.cancel()


# ---- what goes again ---------------------------------------------------------------------------------------------


async def test_publish_that_may_have_arrived_is_not_sent_again_by_default():
    async with pool(2) as stage, anyio.create_task_group() as tasks:
        peers = await stage.handshake()
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        await peers[0].command()
        await peers[0].close()
        await settle()
        assert isinstance(call.error, ConnectionLost)
        assert stage.producer.stats().nsqds[0].lost_count == 1
        await peers[1].close()


async def test_publish_that_may_have_arrived_is_sent_to_another_nsqd_with_more_attempts():
    async with pool(3, publish_attempts=3) as stage, anyio.create_task_group() as tasks:
        peers = await stage.handshake()
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        for peer in peers[:2]:
            assert await peer.command() == (b"PUB t", b"x")
            await peer.close()
        assert await peers[2].command() == (b"PUB t", b"x")
        await peers[2].send(OK_FRAME)
        await settle()
        assert call.succeeded
        assert [nsqd.lost_count for nsqd in stage.producer.stats().nsqds] == [1, 1, 0]
        await peers[2].close()


async def test_publish_is_sent_publish_attempts_times():
    async with pool(3, publish_attempts=2) as stage, anyio.create_task_group() as tasks:
        peers = await stage.handshake()
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        for peer in peers[:2]:
            await peer.command()
            await peer.close()
        await settle()
        assert isinstance(call.error, ConnectionLost)
        await peers[2].close()


async def test_publish_is_sent_again_to_the_only_nsqd():
    async with pool(1, publish_attempts=2) as stage, anyio.create_task_group() as tasks:
        (peer,) = await stage.handshake()
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        await peer.command()
        await peer.close()
        await settle()
        assert not call.done
        stage.clock.advance(1)
        async with await stage.brokers[0].handshake() as peer:
            assert await peer.command() == (b"PUB t", b"x")
            await peer.send(OK_FRAME)
            await settle()
            assert call.succeeded


async def test_connection_lost_is_raised_when_another_attempt_finds_no_connection():
    async with (
        pool(1, publish_attempts=5, connect_timeout=0.01) as stage,
        anyio.create_task_group() as tasks,
    ):
        (peer,) = await stage.handshake()
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        await peer.command()
        stage.brokers[0].hanging = True
        await peer.close()
        await settle()
        stage.clock.advance(0.01)
        await call.wait()
        assert isinstance(call.error, ConnectionLost)


@pytest.mark.parametrize("failure", [PublishFailed, MultiPublishFailed, DeferredPublishFailed])
async def test_failure_of_the_broker_counts_as_an_attempt(failure):
    async with pool(2, publish_attempts=2) as stage, anyio.create_task_group() as tasks:
        peers = await stage.handshake()
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        await peers[0].command()
        await peers[0].send(failure("disk full"))
        await peers[1].command()
        await peers[1].send(OK_FRAME)
        await settle()
        assert call.succeeded
        assert stage.producer.stats().refused_count == 1
        await finish(*peers)


async def test_failure_of_the_broker_is_raised_when_another_attempt_finds_no_connection():
    async with (
        pool(1, publish_attempts=5, connect_timeout=0.01) as stage,
        anyio.create_task_group() as tasks,
    ):
        (peer,) = await stage.handshake()
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        await peer.command()
        stage.brokers[0].hanging = True
        await peer.send(PublishFailed("disk full"))
        await peer.close()  # before the next attempt is sent
        await settle()
        stage.clock.advance(0.01)
        await call.wait()
        assert isinstance(call.error, PublishFailed)


@pytest.mark.parametrize("refusal", [PublishFailed, Unauthorized])
async def test_connection_lost_is_raised_when_the_last_attempt_is_refused(refusal):
    async with pool(2, publish_attempts=2) as stage, anyio.create_task_group() as tasks:
        peers = await stage.handshake()
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        await peers[0].command()
        await peers[0].close()
        await peers[1].command()
        await peers[1].send(refusal("no"))
        await settle()
        assert isinstance(call.error, ConnectionLost)
        await finish(peers[1])


@pytest.mark.parametrize(
    "refusal",
    [
        cls
        for cls in [BrokerError, *BrokerError.__subclasses__()]
        if cls not in {PublishFailed, MultiPublishFailed, DeferredPublishFailed}
    ],
)
async def test_refused_publish_is_not_sent_again(refusal):
    async with pool(2, publish_attempts=5) as stage, anyio.create_task_group() as tasks:
        peers = await stage.handshake()
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        await peers[0].command()
        await peers[0].send(refusal("no"))
        await settle()
        assert type(call.error) is refusal
        await finish(*peers)


async def test_publish_that_has_not_arrived_is_sent_again_without_an_attempt():
    async with pool(2, linger=60) as stage, anyio.create_task_group() as tasks:
        peers = await stage.handshake()
        first, second = Call(), Call()
        tasks.start_soon(first.run, stage.producer.publish, "t", b"1")
        await peers[0].command()
        tasks.start_soon(second.run, stage.producer.publish, "t", b"2")
        await peers[1].command()
        lingering = Call()
        tasks.start_soon(lingering.run, stage.producer.publish, "t", b"3")  # behind the first one
        await settle()
        await peers[0].close()
        await settle()
        assert isinstance(first.error, ConnectionLost)
        assert not lingering.done
        await peers[1].send(OK_FRAME)
        assert await peers[1].command() == (b"PUB t", b"3")
        await peers[1].send(OK_FRAME)
        await settle()
        assert second.succeeded
        assert lingering.succeeded
        await peers[1].close()


# ---- limits ------------------------------------------------------------------------------------------------------


async def test_publishes_wait_in_order_for_max_outstanding_bytes():
    size = len(b"PUB t\n....") + 10
    async with pool(1, max_outstanding_bytes=2 * size) as stage, anyio.create_task_group() as tasks:
        (peer,) = await stage.handshake()
        calls = [Call() for _ in range(5)]
        for n, call in enumerate(calls):
            tasks.start_soon(call.run, stage.producer.publish, "t", b"%010d" % n)
            await settle()
        assert (stage.producer.stats().outstanding_bytes, stage.producer.stats().waiting_count) == (
            2 * size,
            3,
        )
        for n, call in enumerate(calls):
            assert await peer.command() == (b"PUB t", b"%010d" % n)
            await peer.send(OK_FRAME)
            await settle()
            assert call.succeeded
        assert stage.producer.stats().outstanding_bytes == 0
        await peer.close()


async def settle_and_cancel(scope: anyio.CancelScope) -> None:
    await settle()
    scope.cancel()


@pytest.mark.parametrize("linger", [0.0, 1.0])
async def test_bytes_of_a_cancelled_publish_count_until_its_answer(linger):
    async with (
        pool(1, max_outstanding_bytes=1, linger=linger) as stage,
        anyio.create_task_group() as tasks,
    ):
        (peer,) = await stage.handshake()
        with anyio.CancelScope() as scope:
            tasks.start_soon(settle_and_cancel, scope)
            await stage.producer.publish("t", b"1")
        assert stage.producer.stats().outstanding_bytes > 0
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"2")
        await settle()
        assert stage.producer.stats().waiting_count == 1
        assert await peer.command() == (b"PUB t", b"1")
        await peer.send(OK_FRAME)
        assert await peer.command() == (b"PUB t", b"2")
        await peer.send(OK_FRAME)
        await call.wait()
        assert call.succeeded
        assert stage.producer.stats().outstanding_bytes == 0


async def test_publish_raises_publish_timeout_without_an_answer():
    async with pool(1, publish_timeout=0.05) as stage, anyio.create_task_group() as tasks:
        (peer,) = await stage.handshake()
        for seconds, publish in (
            (0.05, partial(stage.producer.publish, "t", b"1")),
            (0.01, partial(stage.producer.multi_publish, "t", [b"2"], timeout=0.01)),
        ):
            call = Call()
            tasks.start_soon(call.run, publish)
            await settle()
            stage.clock.advance(seconds)
            await call.wait()
            assert isinstance(call.error, PublishTimeout)
            assert f"no answer within {seconds} seconds; the message may have" in str(call.error)
        call = Call()
        tasks.start_soon(lambda: call.run(lambda: stage.producer.publish("t", b"3", timeout=0)))
        for body in (b"1", b"\0\0\0\1\0\0\0\1" + b"2", b"3"):
            assert (await peer.command())[1] == body
        await peer.send(OK_FRAME, FinishFailed("not for the third"))
        await settle()
        assert not call.done
        await peer.send(OK_FRAME)
        await settle()
        assert call.succeeded
        await peer.close()


# ---- without waiting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linger", [0.0, 1.0])
async def test_receipt_gets_the_answer_later(linger):
    async with pool(1, linger=linger, max_outstanding_bytes=1000) as stage:
        (peer,) = await stage.handshake()
        for answer in (OK_FRAME, FinishFailed("?")):
            receipt = stage.producer.publish_nowait("t", b"x")
            assert not receipt.is_answered
            assert await peer.command() == (b"PUB t", b"x")
            await peer.send(answer)
            await settle()
            assert receipt.is_answered
            assert stage.producer.stats().outstanding_bytes == 0
        with pytest.raises(FinishFailed):
            await receipt
        await peer.close()


async def test_publish_nowait_raises_would_wait():
    async with pool(1, max_outstanding_bytes=20) as stage:
        with pytest.raises(WouldWait, match="nsqd-0:4150: there is no connection that takes a publish now"):
            stage.producer.publish_nowait("t", b"x")
        assert stage.producer.stats().outstanding_bytes == 0
        (peer,) = await stage.handshake()
        stage.producer.publish_nowait("t", b"x")
        with pytest.raises(WouldWait, match="11 bytes are outstanding, so there is no room for 12 more now"):
            stage.producer.publish_nowait("t", b"xx")
        await peer.command()
        await peer.send(OK_FRAME)
        await settle()
        await peer.close()


# ---- the end -----------------------------------------------------------------------------------------------------


async def test_end_refuses_publishes_and_ends_those_that_wait_for_the_window():
    async with anyio.create_task_group() as tasks:
        sent, waiting = Call(), Call()
        broker = ScriptedBroker()
        async with Producer(ADDRESS, dial=broker.dial, max_outstanding_bytes=1) as producer:
            peer = await broker.handshake()
            await settle()
            tasks.start_soon(sent.run, producer.publish, "t", b"1")
            await peer.command()
            tasks.start_soon(waiting.run, producer.publish, "t", b"2")
            await settle()
            tasks.start_soon(answer_later, peer)
        assert sent.succeeded
        assert isinstance(waiting.error, Closed)
        with pytest.raises(Closed):
            producer.publish_nowait("t", b"x")


async def answer_later(peer: Peer) -> None:
    await settle()
    await peer.send(OK_FRAME)
    await peer.wait_end()
    await peer.close()


# ---- cancelled, wherever it waits --------------------------------------------------------------------------------


class Moody(PlayingBroker):
    """Close the first connection that sends the victim, refuse the bodies to refuse, and acknowledge the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.has_lost = False

    def answer(self, topic: bytes, bodies: list[bytes]) -> bytes | BrokerError | None:
        if b"victim" in bodies and not self.has_lost:
            self.has_lost = True
            return None
        return FinishFailed("?") if topic == b"refused" else OK_FRAME


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "linger": {"linger": 0.001},
    "limited": {"max_outstanding_bytes": 1},
    "limited linger": {"max_outstanding_bytes": 1, "linger": 0.001},
    "in time": {"publish_timeout": 1000},
}


async def play(n: int, options: dict[str, Any]) -> int:
    """Publish a victim among others, cancel it where it waits for the ``n``-th time; return how often it waited."""
    broker, clock = Moody(), ManualClock()
    victim = CancelledAt(n)
    others = {topic: [Call() for _ in range(3)] for topic in ("taken", "refused")}
    async with anyio.create_task_group() as tasks:
        async with Producer(ADDRESS, dial=broker.broker.dial, clock=clock, publish_attempts=2, **options) as producer:

            async def publish_others() -> None:
                for topic, calls in others.items():
                    for number, call in enumerate(calls):
                        tasks.start_soon(call.run, producer.publish, topic, b"%d" % number)

            await publish_others()
            tasks.start_soon(victim.run, producer.publish("taken", b"victim"))
            await settle()
            tasks.start_soon(broker.run)
            with anyio.fail_after(WAIT_LIMIT):
                while not all(call.done for calls in others.values() for call in calls):
                    await settle()
                    clock.advance(1)
            after = {topic: Call() for topic in others}
            for topic, call in after.items():
                tasks.start_soon(call.run, producer.publish, topic, b"after")
            with anyio.fail_after(WAIT_LIMIT):
                while not all(call.done for call in after.values()):
                    await settle()
                    clock.advance(1)
            await settle()
            stats = producer.stats()
            assert (stats.outstanding_bytes, stats.waiting_count) == (0, 0)
            assert [nsqd.outstanding_count for nsqd in stats.nsqds] == [0]
        tasks.cancel_scope.cancel()
    for call in (*others["taken"], after["taken"]):
        assert call.succeeded
    for call in others["refused"]:  # the first attempts of some are lost with the connection
        assert isinstance(call.error, (FinishFailed, ConnectionLost))
    assert isinstance(after["refused"].error, FinishFailed)
    return victim.wait_count


async def test_only_waits_for_a_connection_count_for_connect_timeout():
    delays = {"reconnect_delay_min": 0.001, "reconnect_delay_max": 0.001}
    async with (
        pool(1, publish_attempts=2, connect_timeout=5.0, **delays) as stage,
        anyio.create_task_group() as tasks,
    ):
        call = Call()
        tasks.start_soon(call.run, stage.producer.publish, "t", b"x")
        await settle()
        peer = (await stage.handshake())[0]
        assert await peer.command() == (b"PUB t", b"x")
        stage.clock.advance(6)  # the answer is slow
        await settle()
        await peer.close()
        await settle()
        stage.clock.advance(0.01)
        await settle()
        peer = (await stage.handshake())[0]
        assert await peer.command() == (b"PUB t", b"x")
        await peer.send(OK_FRAME)
        await settle()
        assert call.succeeded
        await peer.close()


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_publish_does_not_change_the_answers_of_others(way):
    wait_count = await play(0, WAYS[way])
    assert wait_count >= 3
    for n in range(1, wait_count + 1):
        assert await play(n, WAYS[way]) >= n
