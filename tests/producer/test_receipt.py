from __future__ import annotations

import anyio
import pytest

from nsqkit.errors import BadMessage
from nsqkit.producer.receipt import Receipt
from tests.threads import WAIT_LIMIT

pytestmark = pytest.mark.anyio


async def test_a_receipt_can_be_awaited_before_and_after_the_answer():
    receipt = Receipt(2, 30)
    assert (receipt.is_answered, receipt.error, receipt.count, receipt.size) == (False, None, 2, 30)
    with anyio.fail_after(WAIT_LIMIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receipt.wait)
            await anyio.wait_all_tasks_blocked()
            receipt.resolve(None)
        await receipt
    assert (receipt.is_answered, receipt.error) == (True, None)


async def test_a_refusal_is_raised_each_time_and_kept():
    receipt = Receipt(1, 0)
    refusal = BadMessage("no")
    receipt.resolve(refusal)
    assert receipt.error is refusal
    for _ in range(2):
        with pytest.raises(BadMessage):
            await receipt
