"""A client that does nothing but live in the event-loop thread."""

from __future__ import annotations

import threading

import anyio


class Client:
    """Is entered and left, and says in which thread."""

    def __init__(self) -> None:
        self.threads = [threading.current_thread()]
        self.leaving = threading.Event()
        self.may_leave = anyio.Event()
        self.may_leave.set()

    async def __aenter__(self) -> Client:
        self.threads.append(threading.current_thread())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.leaving.set()
        await self.may_leave.wait()
        self.threads.append(threading.current_thread())
