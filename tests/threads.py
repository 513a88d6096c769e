"""Helpers for the tests of blocking code: threads with results, and an nsqd that never answers.

A test waits for a condition, with a limit that only a program that is stuck reaches.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any

from nsqkit.wire.frames import encode_response

WAIT_LIMIT = 15.0
"""Seconds after which something counts as stuck."""


def until(condition: Callable[[], object]) -> None:
    """Poll until ``condition`` holds."""
    deadline = time.monotonic() + WAIT_LIMIT
    while not condition():
        assert time.monotonic() < deadline, "the condition does not hold"
        threading.Event().wait(0.001)


def start(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Call a function in a new thread."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@contextmanager
def interrupted_once(condition: Callable[[], object]) -> Iterator[None]:
    """Send Ctrl-C to the main thread, once ``condition`` holds, until it is raised there; then no more.

    A signal that arrives between Python's last check and the system call that waits does not end the wait, so sending
    it once would sometimes leave the thread waiting forever.
    """
    is_raised = False

    def raise_once(number: int, frame: FrameType | None) -> None:
        nonlocal is_raised
        if not is_raised:
            is_raised = True
            raise KeyboardInterrupt

    def send() -> None:
        is_begun.wait()
        try:
            until(condition)
        finally:
            while not is_raised:
                signal.pthread_kill(main_thread, signal.SIGINT)
                threading.Event().wait(0.01)

    is_begun, main_thread = threading.Event(), threading.get_ident()
    before = signal.signal(signal.SIGINT, raise_once)
    sending = start(send)
    try:
        is_begun.set()
        yield
    finally:
        is_raised = True
        sending.result(WAIT_LIMIT)
        signal.signal(signal.SIGINT, before)


@contextmanager
def silent_nsqd() -> Iterator[str]:
    """Give the address of an nsqd that answers IDENTIFY and nothing else."""
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            connections.append(connection)
            if is_over.is_set():
                return
            connection.sendall(encode_response(b"{}"))

    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"{address[0]}:{address[1]}"
        is_over.set()
        with socket.create_connection(address):
            thread.join()
    for connection in connections:
        connection.close()


@contextmanager
def unused_address() -> Iterator[str]:
    """Give an address that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*bound.getsockname())
