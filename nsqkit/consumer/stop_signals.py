"""Signals that stop a consumer: the option ``stop_signals``.

The first signal stops the consumer: no handler begins, and those that have begun may return. The second cancels them at
once. If the event loop has not acted on the first one by then, because a plain handler keeps it busy, the second raises
``KeyboardInterrupt`` for SIGINT and ``SystemExit`` for others in the main thread. The third does so in any case.

Python calls signal handlers only in the main thread, and there is one for each signal. Several consumers share it. When
the last of them has left, the program's own handler is installed again; so it is in a forked process, which has none of
its parent's consumers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from nsqkit.errors import OptionError
from nsqkit.transport.asyncio_stream import asyncio_loop

if TYPE_CHECKING:
    from types import FrameType

_listeners: Final[dict[int, list[StopSignals]]] = {}
_previous: Final[dict[int, Any]] = {}


_FOR_THE_SYSTEM: Final = ("SIGKILL", "SIGSTOP")
"""Signals that a process cannot handle."""


def check_signals(stop_signals: object) -> tuple[signal.Signals, ...]:
    """Return the signals, each once; raise OptionError if it is not a collection of signals that can be handled."""
    text = f"stop_signals is {stop_signals!r}; allowed is a list such as [signal.SIGTERM]"
    if isinstance(stop_signals, str | bytes) or not isinstance(stop_signals, Collection):
        raise OptionError(text)
    try:
        signals = tuple(dict.fromkeys(signal.Signals(number) for number in stop_signals))
    except ValueError as error:
        raise OptionError(f"{text}: {error}") from error
    for each in signals:
        if each.name in _FOR_THE_SYSTEM:
            raise OptionError(f"{text}: {each.name} cannot be handled")
    return signals


class StopSignals:
    """The signals of one consumer, for ``with``.

    Args:
        notify: called in the main thread between any two bytecodes of the program, with True for the first signal and
            False for all others. It hands the stop to the event loop and does not raise.

    Attributes:
        is_handled: set to True once the first signal was acted on.

    Raises:
        OptionError: when entered in another thread than the main thread.
    """

    def __init__(self, signals: Collection[signal.Signals], notify: Callable[[bool], object]) -> None:
        self._signals = signals
        self._notify = notify
        self._count = 0
        self.is_handled = False

    def __enter__(self) -> StopSignals:
        if self._signals and threading.current_thread() is not threading.main_thread():
            raise OptionError("stop_signals works in the main thread alone, where Python handles signals")
        for number in self._signals:
            if not _listeners.get(number):
                _previous[number] = signal.signal(number, _receive)
            _listeners.setdefault(number, []).append(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number in self._signals:
            listeners = _listeners.get(number, [])
            if self in listeners:  # not in a forked process
                listeners.remove(self)
                if not listeners:
                    signal.signal(number, _previous.pop(number))

    def receive(self) -> bool:
        """Count a signal; return whether the consumer acts on it."""
        self._count += 1
        self._notify(self._count == 1)
        return self._count == 1 or (self._count == 2 and self.is_handled)


class LoopCaller:
    """Calls functions in the event loop in which it is made, for signal handlers and for other threads."""

    def __init__(self) -> None:
        self._call_soon: Callable[[Callable[[], object]], object]
        if (loop := asyncio_loop()) is not None:
            self._call_soon = loop.call_soon_threadsafe
        else:
            import trio

            self._call_soon = trio.lowlevel.current_trio_token().run_sync_soon
        self._thread_id = threading.get_ident()

    def __call__(self, function: Callable[[], object]) -> None:
        self._call_soon(function)

    @property
    def is_needed(self) -> bool:
        """Whether the present thread is another one."""
        return threading.get_ident() != self._thread_id


def _receive(number: int, frame: FrameType | None) -> None:
    will_act = [listener.receive() for listener in list(_listeners.get(number, ()))]
    if not all(will_act):
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _leave_to_parent() -> None:
    _listeners.clear()
    while _previous:
        signal.signal(*_previous.popitem())


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_leave_to_parent)
