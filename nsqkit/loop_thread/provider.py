"""The event-loop thread of a process: started for its first user and ended with its last.

It is kept by process id, so that each forked process gets its own thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec

import anyio
from anyio.from_thread import BlockingPortal


class PortalProvider:
    """The event-loop thread of one process, for ``with``, by any number of users at a time.

    Attributes:
        at_end: functions that the present thread calls if it ends while it has users, as by ``SystemExit`` of a
            callback; a later user starts another thread.
    """

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.at_end: list[Callable[[], object]] = []
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._user_count = 0
        self._portal: BlockingPortal | None = None

    @property
    def user_count(self) -> int:
        """The number of present users."""
        return self._user_count

    def __enter__(self) -> BlockingPortal:
        with self._lock:
            if self._portal is None or self.thread is None or not self.thread.is_alive():
                self._portal = self._start()
            self._user_count += 1
            return self._portal

    def __exit__(self, *exc_info: object) -> None:
        if os.getpid() != self._pid:
            return  # the thread is the parent's
        with self._lock:
            self._user_count -= 1
            if self._user_count:
                return
            portal, thread = self._portal, self.thread
            self._portal = self.thread = None
            assert portal is not None
            assert thread is not None
            # A user that was interrupted as it entered may have left a task running.
            with suppress(RuntimeError):  # the event loop has ended
                portal.call(portal.stop, True)
            thread.join()

    def _start(self) -> BlockingPortal:
        started: Future[BlockingPortal] = Future()
        self.at_end = []
        self.thread = threading.Thread(target=_serve, args=[started, self.at_end], name="nsqkit", daemon=True)
        self.thread.start()
        return started.result()


def _serve(started: Future[BlockingPortal], at_end: list[Callable[[], object]]) -> None:
    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        anyio.run(serve, backend="asyncio", backend_options={"use_uvloop": find_spec("uvloop") is not None})
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
    finally:
        for function in at_end.copy():
            function()


_providers: dict[int, PortalProvider] = {}  # the parent's stays here, so that its objects are not collected


def portal_provider() -> PortalProvider:
    """Return the provider of this process, a context manager that gives the portal."""
    return _providers.get(os.getpid()) or _providers.setdefault(os.getpid(), PortalProvider())
