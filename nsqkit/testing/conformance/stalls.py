"""Stalls: times in which this process did not run. A case that waits says nothing about the broker then."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final, Self

STALL_S: Final = 0.5
"""Seconds without a turn that are a stall; cases that wait allow more than that."""

_LOOK_S: Final = 0.05


class Stalls:
    """Notices stalls from a thread, for ``with``.

    Args:
        read: returns the time in seconds.
    """

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._seen = read()
        self._last_end = -math.inf
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="nsqkit stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def since(self, start: float) -> bool:
        """Return whether there was a stall after ``start``, a time that ``read`` has returned."""
        return self._last_end >= start or self._read() - self._seen > STALL_S

    def _look(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            now = self._read()
            if now - self._seen > STALL_S:
                self._last_end = now
            self._seen = now
