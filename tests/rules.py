"""Rules for decoders in tests: those that allow every command, and those that record what they check."""

from __future__ import annotations

from collections.abc import Callable


class AllowAll:
    """Allow every command."""

    def check(self, verb: bytes, params: list[bytes]) -> None:
        """Return at once."""


class CheckWith:
    """Check commands with a function."""

    def __init__(self, check: Callable[[bytes, list[bytes]], object]) -> None:
        self._check = check

    def check(self, verb: bytes, params: list[bytes]) -> None:
        """Call the function."""
        self._check(verb, params)
