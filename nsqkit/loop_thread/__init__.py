"""The event-loop thread behind everything that is called without ``await``.

    threads ── put ──▶ queue ── one wake-up ──▶ event loop      functions
            ── run ──▶ a new task ────────────▶ event loop      async functions

Every call ends with a result, an error, or ``Closed``. Objects from before a fork are not used in the child: their
sockets and locks are the parent's.

``provider`` starts and ends the thread; ``loop_client`` runs one client in it; ``blocking_client`` is the base of the
public classes; ``one_shot`` has the future that tasks and threads wait for; ``waker`` wakes the event loop;
``carried_exit`` keeps exceptions such as ``SystemExit`` from ending it.
"""

from __future__ import annotations

from nsqkit.loop_thread.blocking_client import BlockingClient, forward, forward_async
from nsqkit.loop_thread.carried_exit import CarriedExit
from nsqkit.loop_thread.loop_client import LoopClient
from nsqkit.loop_thread.one_shot import OneShot
from nsqkit.loop_thread.provider import PortalProvider, portal_provider

__all__ = [
    "BlockingClient",
    "CarriedExit",
    "LoopClient",
    "OneShot",
    "PortalProvider",
    "forward",
    "forward_async",
    "portal_provider",
]
