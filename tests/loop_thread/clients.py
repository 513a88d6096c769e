"""A client that is entered and left in the event-loop thread, and does nothing else."""

from __future__ import annotations

import threading

import anyio


class Client:
    """Record the threads in which it is entered and left."""

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
