"""The errors of test servers."""

from __future__ import annotations

from nsqkit.errors import NSQError


class Unsupported(NSQError):
    """The backend of this server cannot do this; the text names the backend, and the backends that can.

    The pytest plugin skips a test that raises it.
    """


class ServerState(NSQError):
    """A server was used while it was stopped, or started while it was running."""
