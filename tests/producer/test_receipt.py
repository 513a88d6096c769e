from __future__ import annotations

from functools import partial

import anyio
import pytest

from nsqkit.errors import BadMessage, NSQError
from nsqkit.producer.linger import BatchRefused
from nsqkit.producer.receipt import LingeringReceipt, Receipt

pytestmark = pytest.mark.anyio


class Told(list[NSQError | None]):
    """What a receipt has told whoever gave it out."""

    def settle(self, error: NSQError | None, count: int, size: int) -> None:
        assert (count, size) == (2, 30)
        self.append(error)


async def test_the_answer_stays_for_whoever_comes():
    told = Told()
    receipt = Receipt(told.settle, 2, 30)
    assert (receipt.is_answered, receipt.error, receipt.done()) == (False, None, False)
    receipt.set_result(None)
    assert (receipt.is_answered, receipt.error, receipt.done()) == (True, None, True)
    for _ in range(2):
        await receipt
    await receipt.wait()
    assert told == [None]


async def test_a_refusal_is_raised_and_can_be_looked_at():
    told = Told()
    receipt = Receipt(told.settle, 2, 30)
    refusal = BadMessage("no")
    receipt.set_result(refusal)
    assert receipt.error is refusal
    for _ in range(2):
        with pytest.raises(BadMessage):
            await receipt
    assert told == [refusal]


async def test_who_waits_may_be_cancelled_and_the_answer_is_still_wanted():
    receipt = Receipt(Told().settle, 2, 30)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receipt.wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    receipt.cancel()
    assert not receipt.done()
    assert not receipt.cancelled()
    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receipt.wait)
            tasks.start_soon(receipt.wait)
            await anyio.wait_all_tasks_blocked()
            receipt.set_result(None)


async def test_a_function_is_called_back_once_whenever_it_comes():
    for answer in (None, BadMessage("no")):
        told, early, late = Told(), Told(), Told()
        receipt = Receipt(told.settle, 2, 30)
        receipt.call_back(early.append)
        assert not early
        receipt.set_result(answer)
        receipt.call_back(late.append)
        assert told == early == late == [answer]


async def test_what_was_refused_in_a_batch_goes_again_and_has_its_own_answer():
    told = Told()
    again: list[Receipt] = []
    receipt = LingeringReceipt(told.settle, 2, 30, again.append)
    receipt.set_result(BatchRefused("for another one"))
    assert again == [receipt]
    assert not receipt.is_answered
    receipt.set_result(None)
    await receipt
    assert told == [None]


def test_several_may_be_called_with_the_answer_in_order():
    called: list[tuple[str, NSQError | None]] = []

    def note(name: str, error: NSQError | None) -> None:
        called.append((name, error))

    receipt = Receipt(Told().settle, 2, 30)
    for name in ("first", "second", "third"):
        receipt.call_back(partial(note, name))
    receipt.set_result(None)
    receipt.call_back(partial(note, "late"))
    assert called == [("first", None), ("second", None), ("third", None), ("late", None)]
