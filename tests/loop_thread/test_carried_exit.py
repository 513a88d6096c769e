from __future__ import annotations

import pytest

from nsqkit.loop_thread.carried_exit import CarriedExit


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_is_carried_by_an_exception(error):
    with pytest.raises(Exception, match=r"^3?$") as caught:
        raise CarriedExit(error)
    assert isinstance(caught.value, CarriedExit)
    assert caught.value.error is error
