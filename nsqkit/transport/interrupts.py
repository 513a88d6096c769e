"""Protects a client's tasks from Ctrl-C on trio, which raises ``KeyboardInterrupt`` in any running task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nsqkit.transport.asyncio_stream import asyncio_loop


async def without_interrupts(function: Callable[[], Awaitable[None]]) -> None:
    """Call ``function``; on trio, Ctrl-C is meanwhile raised in the main task.

    In ``function`` it would break a connection, whose messages would then be in flight until their timeout. The tasks
    that ``function`` starts are not protected.
    """
    if asyncio_loop() is not None:
        await function()
        return
    import trio

    @trio.lowlevel.enable_ki_protection
    async def call() -> None:
        await function()

    await call()
