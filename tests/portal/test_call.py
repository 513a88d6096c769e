from __future__ import annotations

import pytest

from nsqkit.portal.call import Call
from tests.threads import PATIENCE, start


def test_who_waits_is_told():
    call: Call[int] = Call()
    waiting = start(call.wait, PATIENCE)
    call.tell(7)
    assert waiting.result(PATIENCE)
    assert call.result() == 7


def test_it_may_be_told_before_it_waits():
    call: Call[None] = Call()
    call.settle(None)
    assert call.wait(0)
    assert call.result() is None


@pytest.mark.parametrize("tell", [Call.fail, Call.settle])
def test_an_error_is_raised(tell):
    call: Call[None] = Call()
    tell(call, ValueError("no"))
    assert call.wait(0)
    with pytest.raises(ValueError, match="no"):
        call.result()


def test_a_wait_may_have_a_limit():
    assert not Call().wait(0.01)
