"""Rules for decoders in tests: those that allow every command, and those that record what they check."""

from __future__ import annotations

from collections.abc import Callable


class AllowAll:
    """Allow every command."""

    state: object = None

    def check(self, verb: bytes, params: list[bytes]) -> None:
        """Return at once."""


class CheckWith:
    """Check commands with a function, each time."""

    def __init__(self, check: Callable[[bytes, list[bytes]], object]) -> None:
        self._check = check

    @property
    def state(self) -> object:
        """A new state each time."""
        return object()

    def check(self, verb: bytes, params: list[bytes]) -> None:
        """Call the function."""
        self._check(verb, params)
