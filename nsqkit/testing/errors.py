"""The errors of test servers."""

from __future__ import annotations

from typing import NoReturn

from nsqkit.errors import NSQError


class Unsupported(NSQError):
    """The backend of this server cannot do this; the text has the reason. The pytest plugin skips the test."""


class ServerState(NSQError):
    """A server was used while it was stopped, or started while it was running."""


class StartFailed(NSQError):
    """An nsqd outside of this process does not answer; the text has its last output, where there is any."""


def refuse(backend: str, what: str) -> NoReturn:
    """Raise Unsupported for a backend other than the embedded one; ``what`` is the beginning of the sentence."""
    raise Unsupported(f"{what} with the backend {backend!r}; that needs backend='embedded'")
