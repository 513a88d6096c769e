"""The event-loop thread behind everything that is called without ``await``.

    threads ── put ──▶ queue ── one wake-up ──▶ event loop      what begins there and does not wait
            ── run ──▶ a task of its own ─────▶ event loop      what waits there

The rule it guards: whoever waits for the event loop is told, whatever becomes of it: an answer, an error, or that it
was closed. What was made before a fork is left alone in the child, for its sockets and locks are the parent's.

How to read it: ``provider`` gives the thread to whoever needs it; ``stay`` is the time that one client spends in it,
``blocking`` what users hold of that; ``call`` is where a thread waits, ``waker`` how the event loop is woken.
"""

from __future__ import annotations

from nsqkit.portal.blocking import Blocking
from nsqkit.portal.call import Call
from nsqkit.portal.provider import PortalProvider, portal_provider
from nsqkit.portal.stay import Stay

__all__ = ["Blocking", "Call", "PortalProvider", "Stay", "portal_provider"]
