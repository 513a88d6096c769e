"""Waits of a test for a state of its broker, without a pause of a fixed length.

A wait looks again when the broker's connections had traffic, and every few milliseconds. Its limit is in real seconds,
also with a clock that the test controls. If it is over, an AssertionError has the state and the journal's last lines.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from nsqkit.errors import OptionError
from nsqkit.options.checks import WAIT_MAX, take_seconds
from nsqkit.testing.blocking import wait
from nsqkit.testing.errors import ServerState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsqkit.options.durations import Seconds
    from nsqkit.testing.link.journal import Journal
    from nsqkit.testing.state import ChannelState, NsqdState, TopicState

TIMEOUT: Final = 5.0
"""Real seconds for which a wait lasts at most, unless a test gives another number."""

LOOK_INTERVAL: Final = 0.005
"""Real seconds between two looks without traffic: a test's predicate may depend on anything."""

REST: Final = 0.001
"""Real seconds between two looks while there is traffic, so that they do not slow down the broker."""

LINES_MAX: Final = 20
"""Lines of the journal in the message of a failure."""


class Traffic:
    """Wakes the threads that wait for a change in a server."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._waiter_count = 0

    def notify(self) -> None:
        """Have waiting threads look again; called often, in the loop thread."""
        if self._waiter_count:
            with self._condition:
                self._count += 1
                self._condition.notify_all()

    def wait_for(self, predicate: Callable[[], object], timeout: float) -> bool:
        """Call ``predicate`` in this thread until its result is true; return False after ``timeout`` real seconds."""
        end = time.monotonic() + timeout
        with self._condition:
            self._waiter_count += 1
        try:
            while True:
                count, looked = self._count, time.monotonic()
                if predicate():
                    return True
                with self._condition:
                    if self._count == count:
                        self._condition.wait(min(LOOK_INTERVAL, max(end - time.monotonic(), 0)))
                now = time.monotonic()
                if now >= end:
                    return bool(predicate())
                time.sleep(max(looked + REST - now, 0))
        finally:
            with self._condition:
                self._waiter_count -= 1


class Observed(Protocol):
    """A server whose state a test waits for."""

    @property
    def journal(self) -> Journal:
        """The journal."""
        ...

    @property
    def state(self) -> NsqdState:
        """The present state."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Notified after each read of a connection."""
        ...

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        ...


class Waits:
    """The waits, as methods of a server. In an async test their results have to be awaited."""

    def wait_for(self: Observed, predicate: Callable[[], object], timeout: Seconds = TIMEOUT) -> Awaitable[None]:
        """Return when the result of ``predicate`` is true.

        Args:
            predicate: called without arguments; in an async test in another thread. It must not wait.
            timeout: real seconds.

        Raises:
            AssertionError: it was false for so long. An error of ``predicate`` is raised as it is.
            OptionError: ``timeout`` is no length of time.
        """
        return _start(self, predicate, timeout, lambda: f"{_name(predicate)} was false")

    def wait_depth(
        self: Observed, topic: str, channel: str | None, depth: int, timeout: Seconds = TIMEOUT
    ) -> Awaitable[None]:
        """Return when there is the channel, or with None the topic, and exactly ``depth`` messages wait in it.

        Raises:
            AssertionError: that was not so for ``timeout`` real seconds.
            OptionError: an argument is wrong.
        """
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
            raise OptionError(f"depth is {depth!r}; allowed is an integer of at least 0")
        look = partial(_place, self, topic, channel)
        look()

        def is_reached() -> bool:
            place = look()
            return place.exists and place.depth == depth

        return _start(self, is_reached, timeout, lambda: f"the depth of {_path(topic, channel)} was not {depth}")

    def wait_idle(
        self: Observed, topic: str | None = None, channel: str | None = None, timeout: Seconds = TIMEOUT
    ) -> Awaitable[None]:
        """Return when no message waits, is in flight or deferred: in the channel, the topic, or with None in all.

        A topic or channel that does not exist is not idle.

        Raises:
            AssertionError: that was not so for ``timeout`` real seconds.
            OptionError: an argument is wrong.
        """
        if topic is None and channel is not None:
            raise OptionError(f"channel is {channel!r} and topic is None; a channel needs its topic")
        if topic is not None:
            _place(self, topic, channel)
        is_idle = partial(_is_idle, self, topic, channel)
        return _start(self, is_idle, timeout, lambda: f"{_path(topic, channel)} was not idle")

    def wait_connected(self: Observed, count: int = 1, timeout: Seconds = TIMEOUT) -> Awaitable[None]:
        """Return when at least ``count`` connections are open.

        Raises:
            AssertionError: there were fewer for ``timeout`` real seconds.
            OptionError: an argument is wrong.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise OptionError(f"count is {count!r}; allowed is an integer of at least 1")
        return _start(
            self,
            lambda: self.connection_count >= count,
            timeout,
            lambda: f"there were {self.connection_count} connections, fewer than {count},",
        )


def _start(
    server: Observed, predicate: Callable[[], object], timeout: Seconds, failure: Callable[[], str]
) -> Awaitable[None]:
    """Wait; ``failure`` returns the beginning of a sentence that ends with the time."""
    __tracebackhide__ = True
    seconds = take_seconds("timeout", timeout, WAIT_MAX)

    def run() -> None:
        __tracebackhide__ = True
        if not server.traffic.wait_for(predicate, seconds):
            raise AssertionError(_message(server, f"{failure()} for {seconds:g} s"))

    return wait(run)


def _message(server: Observed, sentence: str) -> str:
    tail = server.journal.tail(LINES_MAX) or "nothing"
    try:
        state = str(server.state)
    except ServerState:
        state = "stopped"
    return f"{sentence}\n\nstate:\n{state}\n\nthe last {LINES_MAX} lines of the journal:\n{tail}"


def _name(predicate: Callable[[], object]) -> str:
    name = getattr(predicate, "__name__", repr(predicate))
    code = getattr(predicate, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _place(server: Observed, topic: str, channel: str | None) -> TopicState | ChannelState:
    found = server.state.topic(topic)
    return found if channel is None else found.channel(channel)


def _path(topic: str | None, channel: str | None) -> str:
    if topic is None:
        return "the broker"
    return f"topic {topic!r}" if channel is None else f"channel '{topic}/{channel}'"


def _is_idle(server: Observed, topic: str | None, channel: str | None) -> bool:
    state = server.state
    topics = list(state.topics.values()) if topic is None else [state.topic(topic)]
    if channel is not None:
        return _is_empty(topics[0].channel(channel))
    return all(each.exists and not each.depth and all(map(_is_empty, each.channels.values())) for each in topics)


def _is_empty(channel: ChannelState) -> bool:
    return channel.exists and not (channel.depth or channel.in_flight or channel.deferred)
