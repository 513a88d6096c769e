"""Exceptions such as ``SystemExit``, carried through the event-loop thread to the caller.

asyncio ends the event loop if a task raises ``SystemExit`` or ``KeyboardInterrupt``, and a portal of anyio ends with
any exception that is no ``Exception``. The event-loop thread has other users, so such exceptions are wrapped there.
"""

from __future__ import annotations


class CarriedExit(Exception):
    """Carries an exception that is no ``Exception``.

    Attributes:
        error: the exception to be raised in the caller.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error
