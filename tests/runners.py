"""The ways to run an async program: each has a fresh event loop, and only ``anyio.run`` registers it with anyio.

A program must work under all of them. anyio's own runner sets a context variable in every callback, by which functions
such as ``anyio.current_time`` find the loop outside of any task. Other runners do not, so a test that runs by anyio's
pytest plugin cannot find a fault that depends on it.

``RUNNERS`` are the parameters of the fixture ``run`` of ``tests/conftest.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import anyio
import trio
import uvloop

Main: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
Run: TypeAlias = Callable[[Main], None]

WAIT_LIMIT = 60
"""Seconds after which a program counts as stuck."""


def _in_time(main: Main) -> Main:
    async def limited() -> None:
        with anyio.fail_after(WAIT_LIMIT):
            await main()

    return limited


RUNNERS: dict[str, Run] = {
    "asyncio.run": lambda main: asyncio.run(_in_time(main)()),
    "uvloop.run": lambda main: uvloop.run(_in_time(main)()),
    "trio.run": lambda main: trio.run(_in_time(main)),
    "anyio.run": lambda main: anyio.run(_in_time(main)),
}
