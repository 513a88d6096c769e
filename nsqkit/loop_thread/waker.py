"""How threads wake the event loop.

The rule it guards: a wake-up is never lost, and never touches a file that it is not meant for.
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
    """Has a function called in the event loop by any thread: ``call_soon_threadsafe``, with a third less of work.

    To be made, and closed, in the event loop.

    Args:
        loop: the event loop.
        function: raises nothing; called at least once after each ``wake``, many of which may be one call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        self._loop = loop
        self._function = function
        if sys.platform == "linux":
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            # Not before nobody can wake any more, or the number might be another file's by then.
            weakref.finalize(self, os.close, self._fd)
            loop.add_reader(self._fd, self._on_wake)

    def wake(self) -> None:
        """Have the function called.

        Raises:
            RuntimeError: the event loop has ended; it is not always noticed.
        """
        if sys.platform == "linux":
            os.eventfd_write(self._fd, 1)
        else:
            self._loop.call_soon_threadsafe(self._function)

    def close(self) -> None:
        """Call the function no more, however often it is woken."""
        if sys.platform == "linux":
            self._loop.remove_reader(self._fd)

    def _on_wake(self) -> None:
        if sys.platform == "linux":
            os.eventfd_read(self._fd)
        self._function()
