from __future__ import annotations

import pytest

from nsqkit.loop_thread.call import Call
from tests.threads import WAIT_LIMIT, start


def test_who_waits_is_told():
    call: Call[int] = Call()
    waiting = start(call.wait)
    call.tell(7)
    assert waiting.result(WAIT_LIMIT) == 7


def test_it_may_be_told_before_it_waits():
    call: Call[None] = Call()
    call.settle(None)
    call.wait()


@pytest.mark.parametrize("tell", [Call.fail, Call.settle])
def test_an_error_is_raised(tell):
    call: Call[None] = Call()
    tell(call, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        call.wait()


def test_a_wait_may_have_a_limit():
    call: Call[int] = Call()
    assert not call.is_told(0.01)
    call.tell(7)
    assert call.is_told(WAIT_LIMIT)
    assert call.wait() == 7
