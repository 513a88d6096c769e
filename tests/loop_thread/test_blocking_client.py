from __future__ import annotations

import os

import pytest

from nsqkit.errors import Closed, OptionError
from nsqkit.loop_thread.blocking_client import BlockingClient
from tests.loop_thread.clients import Client


def make() -> BlockingClient[Client]:
    return BlockingClient(Client, "client")


def test_client_is_used_between_open_and_close():
    blocking = make()
    with pytest.raises(Closed, match="use it inside of 'with'"):
        blocking._opened()
    assert blocking.open() is blocking
    assert blocking._opened().ask(lambda: 7) == 7
    blocking.close()
    blocking.close()
    with pytest.raises(Closed):
        blocking._opened()


def test_client_is_opened_once_at_a_time_and_again_after_its_end():
    blocking = make()
    for _ in range(2):
        with blocking as entered, pytest.raises(Closed, match="the client is open already"):
            entered.open()


def test_client_is_opened_again_in_another_process(monkeypatch):
    blocking = make()
    with blocking:
        theirs = blocking._opened()
        monkeypatch.setattr(os, "getpid", lambda: -1)
        blocking.close()
        with blocking:
            assert blocking._opened() is not theirs
        monkeypatch.undo()
        assert theirs.ask(lambda: 7) == 7
        theirs.end()


def test_wrong_options_are_refused_before_open():
    def fail() -> Client:
        raise OptionError("no")

    with pytest.raises(OptionError):
        BlockingClient(fail, "client")


def test_client_that_another_thread_closes_meanwhile_is_used_or_closed():
    looks = [object(), None]

    class Closing(BlockingClient):
        _loop_client = property(lambda self: looks.pop(0), lambda self, value: None)

    assert Closing(object, "client")._opened() is not None
