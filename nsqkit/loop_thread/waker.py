"""Waking the event loop from other threads.

No wake-up is lost, and none is written to a file descriptor that was closed and belongs to another file.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Waker:
    """Calls a function in the event loop for any thread: ``call_soon_threadsafe`` at two thirds of its cost.

    Create and close it in the event loop. The function must not raise; it is called at least once after each ``wake``,
    and once for several that come together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        self._loop = loop
        self._function = function
        if sys.platform == "linux":
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            # Not earlier, or a late wake-up might write to another file with the same number.
            weakref.finalize(self, os.close, self._fd)
            loop.add_reader(self._fd, self._on_wake)

    def wake(self) -> None:
        """Call the function soon; raise RuntimeError, not in every case, if the event loop has ended."""
        if sys.platform == "linux":
            os.eventfd_write(self._fd, 1)
        else:
            self._loop.call_soon_threadsafe(self._function)

    def close(self) -> None:
        """Ignore all wake-ups from now on."""
        if sys.platform == "linux":
            self._loop.remove_reader(self._fd)

    def _on_wake(self) -> None:
        if sys.platform == "linux":
            os.eventfd_read(self._fd)
        self._function()
