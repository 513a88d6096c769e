from __future__ import annotations

import pytest

from nsqkit.errors import NSQError
from nsqkit.testing.errors import ServerState, Unsupported


@pytest.mark.parametrize("kind", [ServerState, Unsupported])
def test_error_is_an_nsq_error(kind: type[NSQError]) -> None:
    assert issubclass(kind, NSQError)
    assert str(kind("a sentence")) == "a sentence"
