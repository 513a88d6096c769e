"""The interface of a store of slots.

The fence of the slot log is ``put_if_absent``: of several writers of one key, on any machine, one succeeds and the
others get False. A store that cannot promise this refuses to be created.
"""

from __future__ import annotations

from typing import Protocol


class SlotStore(Protocol):
    """Keys with bytes that never change. A key is a relative path with slashes."""

    def put_if_absent(self, key: str, *parts: bytes | memoryview) -> bool:
        """Store the bytes of all parts; return False if the key exists. The key is durable when this returns True."""

    def get(self, key: str) -> bytes | memoryview | None:
        """Return the bytes of a key; None if there is none."""

    def list(self, prefix: str) -> list[str]:
        """Return the keys below a prefix, which ends with a slash or is empty, in order."""

    def delete(self, prefix: str) -> None:
        """Remove a key, or all keys below a prefix that ends with a slash."""
