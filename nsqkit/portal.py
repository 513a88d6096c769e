"""The event-loop thread behind everything that is called without ``await``.

The rule it guards: one thread for a process, started when it is first needed and ended with the last who needs it.
It is kept by process id, so that a process that was forked gets a thread of its own instead of a dead one.
"""

from __future__ import annotations

import os

from anyio.from_thread import BlockingPortalProvider

_providers: dict[int, BlockingPortalProvider] = {}


def portal_provider() -> BlockingPortalProvider:
    """Return this process's provider; ``with`` it to get the portal."""
    pid = os.getpid()
    if pid not in _providers:
        _providers.clear()
        _providers[pid] = BlockingPortalProvider(backend="asyncio")
    return _providers[pid]
