"""Very many idle consumers that answer heartbeats.

nsqd disconnects a client that does not answer heartbeats, and a broker that sends none has less work. So a lost
connection is an error.
"""

from __future__ import annotations

import resource
import selectors
import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tests.benchmarks import raw_client
from tests.benchmarks.harness import RunFailed
from tests.benchmarks.layers import Connection

_RECEIVE_SIZE = 4096
_OTHER_FILES = 100


def allow_connections(count: int) -> bool:
    """Raise the limit of open files, for this process and its children; return whether that is enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return False
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return True


class Crowd:
    """The consumers of one channel, for ``with``: they are subscribed on entry.

    Args:
        address: the broker's.
        topic: topic of all of them.
        count: number of consumers.
        heartbeat_ms: requested heartbeat interval.

    Attributes:
        lost: set once the broker has closed a connection.

    Raises:
        RunFailed: on exit, if a connection was lost.
    """

    def __init__(self, address: str, topic: str, count: int, heartbeat_ms: int = 30_000) -> None:
        self._connect = lambda: raw_client.subscribe(address, topic, heartbeat_ms=heartbeat_ms)
        self._count = count
        self._lost_count = 0
        self.lost = threading.Event()
        self._leaving = threading.Event()
        self._stack = ExitStack()
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        self._thread = threading.Thread(target=self._answer, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            for _ in range(self._count):
                connection = self._stack.enter_context(self._connect())
                self._selector.register(connection, selectors.EVENT_READ, connection)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
        if self.lost.is_set() and exc is None:
            raise RunFailed(f"the broker closed {self._lost_count} of {self._count} idle connections")

    def _end(self) -> None:
        self._leaving.set()
        self._thread.join()
        self._stack.close()

    def _answer(self) -> None:
        """Answer each heartbeat, until the end of the block."""
        while not self._leaving.is_set():
            for key, _ in self._selector.select(timeout=0.1):
                connection: Connection = key.data
                if connection.recv(_RECEIVE_SIZE):
                    connection.sendall(b"NOP\n")
                else:
                    self._selector.unregister(connection)
                    self._lost_count += 1
                    self.lost.set()
