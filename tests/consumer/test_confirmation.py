from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit import Consumer
from nsqkit.clock import ManualClock
from nsqkit.consumer.confirmation import Confirmation
from nsqkit.errors import Closed, FinishFailed, InvalidCommand, TouchFailed
from nsqkit.testing import NsqdServer
from nsqkit.wire.commands import BARRIER_ID
from nsqkit.wire.frames import encode_error
from tests.consumer.driven import DrivenConsumer, DrivenSession
from tests.consumer.test_consumer import consuming, fin, in_memory
from tests.peers import ADDRESS, message_id, settle

BARRIER = encode_error(FinishFailed(f"FIN {BARRIER_ID.decode()} failed ID not in flight"))


def fin_failed(number: int) -> bytes:
    return encode_error(FinishFailed(f"FIN {message_id(number).decode()} failed ID not in flight"))


def touch_failed(number: int) -> bytes:
    return encode_error(TouchFailed(f"TOUCH {message_id(number).decode()} failed ID not in flight"))


@pytest.fixture
def consumer() -> DrivenConsumer:
    return DrivenConsumer(max_in_flight=10)


@pytest.fixture
def link(consumer: DrivenConsumer) -> DrivenSession:
    link = consumer.connect()
    link.lines()
    return link


class TestSessions:
    def test_the_barrier_follows_all_commands(self, consumer: DrivenConsumer, link: DrivenSession):
        one, two, three = link.deliver(1, 2, 3)
        three.touch()
        confirming = consumer.subscription.finish_confirmed([one, two])
        assert link.lines() == ["TOUCH 3", "FIN 1", "FIN 2", "FIN 0"]
        assert not confirming.is_done
        link.send(BARRIER)
        assert confirming.is_done
        assert confirming.result() == Confirmation()

    def test_refused_messages_have_failed(self, consumer: DrivenConsumer, link: DrivenSession):
        one, two, three = link.deliver(1, 2, 3)
        confirming = consumer.subscription.finish_confirmed([one, two, three])
        link.send(fin_failed(1) + fin_failed(3) + BARRIER)
        assert confirming.result() == Confirmation(failed=(one, three))

    def test_a_touch_that_is_refused_has_failed(self, consumer: DrivenConsumer, link: DrivenSession):
        one, two = link.deliver(1, 2)
        confirming = consumer.subscription.touch_confirmed([one, two])
        assert link.lines() == ["TOUCH 1", "TOUCH 2", "FIN 0"]
        link.send(touch_failed(2) + BARRIER)
        assert confirming.result() == Confirmation(failed=(two,))
        assert not one.is_answered

    def test_a_fin_may_be_accepted_after_a_touch_was_refused(self, consumer: DrivenConsumer, link: DrivenSession):
        """The message has timed out, and nsqd delivers it again between the two."""
        (one,) = link.deliver(1)
        one.touch()
        confirming = consumer.subscription.finish_confirmed([one])
        link.send(touch_failed(1) + BARRIER)
        assert confirming.result() == Confirmation()

    def test_a_refusal_belongs_to_the_next_barrier(self, consumer: DrivenConsumer, link: DrivenSession):
        one, two, three = link.deliver(1, 2, 3)
        first, second, third = (consumer.subscription.finish_confirmed([message]) for message in (one, two, three))
        link.send(BARRIER + fin_failed(2))
        assert (first.is_done, second.is_done) == (True, False)
        link.send(BARRIER + BARRIER)
        assert [confirming.result().failed for confirming in (first, second, third)] == [(), (two,), ()]

    def test_a_refusal_before_the_first_barrier_is_only_counted(self, consumer: DrivenConsumer, link: DrivenSession):
        one, two = link.deliver(1, 2)
        one.finish()
        link.lines()
        link.send(fin_failed(1))
        confirming = consumer.subscription.finish_confirmed([two])
        link.send(BARRIER)
        assert confirming.result() == Confirmation()
        assert link.session.counts.refused == 1

    def test_the_refusal_of_the_barrier_is_in_no_count(self, consumer: DrivenConsumer, link: DrivenSession):
        (one,) = link.deliver(1)
        consumer.subscription.finish_confirmed([one])
        link.lines()
        link.send(BARRIER)
        assert (link.session.counts.finished, link.session.counts.refused) == (1, 0)
        assert consumer.backoff_changes == []
        link.send(BARRIER)  # without a barrier, an error like any other
        assert link.session.counts.refused == 1

    def test_an_unreadable_refusal_names_no_message(self, consumer: DrivenConsumer, link: DrivenSession):
        (one,) = link.deliver(1)
        confirming = consumer.subscription.finish_confirmed([one])
        link.send(encode_error(FinishFailed("")) + encode_error(FinishFailed("\udcff \udcff")) + BARRIER)
        assert confirming.result() == Confirmation()

    def test_messages_that_are_not_held_have_failed_and_nothing_is_sent(
        self, consumer: DrivenConsumer, link: DrivenSession
    ):
        one, two = link.deliver(1, 2)
        one.finish()
        (later,) = link.deliver(2, attempts=2)
        link.lines()
        confirming = consumer.subscription.finish_confirmed([one, two])
        assert link.lines() == []
        assert confirming.is_done
        assert confirming.result() == Confirmation(failed=(one, two))
        assert not later.is_answered

    def test_a_lost_connection_leaves_messages_unknown(self, consumer: DrivenConsumer, link: DrivenSession):
        one, two, three = link.deliver(1, 2, 3)
        first, second = (consumer.subscription.finish_confirmed([message]) for message in (one, two))
        link.send(fin_failed(1) + BARRIER)
        link.lose()
        assert first.result() == Confirmation(failed=(one,))
        assert second.result() == Confirmation(unknown=(two,))
        assert consumer.subscription.finish_confirmed([three]).result() == Confirmation(failed=(three,))

    def test_a_fatal_error_in_answer_to_the_barrier_leaves_messages_unknown(
        self, consumer: DrivenConsumer, link: DrivenSession
    ):
        (one,) = link.deliver(1)
        confirming = consumer.subscription.finish_confirmed([one])
        link.send(encode_error(InvalidCommand("no")))
        assert confirming.result() == Confirmation(unknown=(one,))

    def test_each_connection_has_its_barrier(self, consumer: DrivenConsumer, link: DrivenSession):
        other = consumer.connect("other:4150")
        messages = [*link.deliver(1), *other.deliver(1), *link.deliver(2)]
        confirming = consumer.subscription.finish_confirmed(messages)
        assert link.lines() == ["RDY 5", "FIN 1", "FIN 2", "FIN 0"]
        assert other.lines()[-2:] == ["FIN 1", "FIN 0"]
        link.send(BARRIER)
        assert not confirming.is_done
        other.send(fin_failed(1) + BARRIER)
        assert confirming.result() == Confirmation(failed=(messages[1],))

    def test_a_session_that_closes_waits_for_its_barrier(self, consumer: DrivenConsumer, link: DrivenSession):
        (one,) = link.deliver(1)
        consumer.core.inbox.clear()
        consumer.core.close(0, 10**12)
        confirming = consumer.subscription.finish_confirmed([one])
        link.dismiss()
        link.lines()
        assert not link.session.ended
        link.send(BARRIER)
        assert link.session.ended
        assert confirming.result() == Confirmation()

    def test_a_barrier_of_an_ended_session_has_passed(self, link: DrivenSession):
        link.lose()
        barrier = link.session.add_barrier()
        assert (barrier.is_passed, barrier.refused) == (True, None)

    @given(
        rounds=st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=6),
        answered=st.integers(0, 24),
    )
    def test_each_outcome_is_that_of_nsqd(self, rounds: list[list[bool]], answered: int):
        """Messages are refused or not, in barriers; the connection is lost after some of nsqd's answers."""
        consumer = DrivenConsumer(max_in_flight=100)
        link = consumer.connect()
        number, answers, expected = 0, [], []
        for refusals in rounds:
            messages = link.deliver(*range(number + 1, number + 1 + len(refusals)))
            number += len(refusals)
            failed = tuple(m for m, is_refused in zip(messages, refusals, strict=True) if is_refused)
            answers += [fin_failed(int(m.id, 16)) for m in failed]
            answers.append(BARRIER)
            is_answered = len(answers) <= answered
            outcome = Confirmation(failed=failed) if is_answered else Confirmation(unknown=tuple(messages))
            expected.append((consumer.subscription.finish_confirmed(messages), outcome))
        link.send(b"".join(answers[:answered]))
        link.lose()
        assert [confirming.result() for confirming, _ in expected] == [outcome for _, outcome in expected]


pytestmark = pytest.mark.anyio


@in_memory
class TestConsumer:
    async def test_it_waits_for_the_barrier(self):
        async with consuming() as (consumer, peer):
            await peer.deliver(1, 2)
            batch = await anext(consumer.batches(2, 10))
            outcomes: list[Confirmation] = []

            async def finish() -> None:
                outcomes.append(await consumer.finish_confirmed(batch))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(finish)
                assert [await peer.line() for _ in range(3)] == [fin(1), fin(2), b"FIN " + BARRIER_ID]
                await settle()
                assert outcomes == []
                await peer.send(fin_failed(2) + BARRIER)
            assert outcomes == [Confirmation(failed=(batch[1],))]

    async def test_closed_consumers_are_refused(self):
        consumer = Consumer("t", "c", nsqd_tcp_addresses=[ADDRESS])
        for confirmed in (consumer.finish_confirmed, consumer.touch_confirmed):
            with pytest.raises(Closed):
                await confirmed([])


class TestBroker:
    async def test_a_fin_after_the_timeout_in_nsqd_has_failed(self):
        """nsqd times a message out while this end still waits, because the clocks differ."""
        with NsqdServer(clock="manual") as nsqd:
            nsqd.publish("t", b"one", b"two")
            async with Consumer(
                "t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=2, clock=ManualClock()
            ) as consumer:
                late = [await anext(consumer) for _ in range(2)]
                consumer.pause()
                await nsqd.clock.advance(45)
                assert await consumer.touch_confirmed(late[1:]) == Confirmation()
                await nsqd.clock.advance(45)
                assert await consumer.finish_confirmed(late) == Confirmation(failed=(late[0],))
                assert (consumer.stats().finished, consumer.stats().refused) == (1, 1)

    @pytest.mark.parametrize("after", [0, 1, 2])
    async def test_a_connection_lost_at_a_fin_leaves_messages_unknown(self, after: int):
        """The last of three FINs is the barrier."""
        with NsqdServer() as nsqd:
            nsqd.publish("t", b"one", b"two")
            async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=2) as consumer:
                messages = [await anext(consumer) for _ in range(2)]
                nsqd.faults.reset(command="FIN", after=after, times=1)
                assert await consumer.finish_confirmed(messages) == Confirmation(unknown=tuple(messages))
