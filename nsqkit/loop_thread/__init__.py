"""The event-loop thread behind everything that is called without ``await``.

    threads ── put ──▶ queue ── one wake-up ──▶ event loop      what begins there and does not wait
            ── run ──▶ a task of its own ─────▶ event loop      what waits there

The rule it guards: whoever waits for the event loop is told, whatever becomes of it: an answer, an error, or that it
was closed. What was made before a fork is left alone in the child, for its sockets and locks are the parent's.

How to read it: ``provider`` starts and ends the thread; ``loop_client`` runs one client in it; ``blocking_client`` is
what users hold; ``one_shot`` has the future that tasks and threads wait for; ``waker`` wakes the event loop.
"""

from __future__ import annotations

from nsqkit.loop_thread.blocking_client import BlockingClient
from nsqkit.loop_thread.loop_client import LoopClient
from nsqkit.loop_thread.one_shot import OneShot
from nsqkit.loop_thread.provider import PortalProvider, portal_provider

__all__ = ["BlockingClient", "LoopClient", "OneShot", "PortalProvider", "portal_provider"]
