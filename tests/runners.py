"""The ways to run an async program: each has a fresh event loop, and none but ``anyio.run`` tells anyio of it.

The rule it guards: what works under ``anyio.run`` works under the others. anyio's own runner leaves a mark in the
context of every callback, by which functions such as ``anyio.current_time`` find the loop outside of any task. Programs
that are started otherwise have no such mark, so a test that pytest's plugin of anyio runs cannot see what is missing.

How to read it: ``RUNNERS``, which the fixture ``run`` of ``tests/conftest.py`` is made of.
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
