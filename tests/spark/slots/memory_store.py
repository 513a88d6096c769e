"""A store of slots in memory."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class MemoryStore:
    """A SlotStore whose keys are in a dict."""

    values: dict[str, bytes] = attrs.field(factory=dict)

    def put_if_absent(self, key: str, *parts: bytes | memoryview) -> bool:
        data = b"".join(parts)
        return self.values.setdefault(key, data) is data

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def list(self, prefix: str) -> list[str]:
        return sorted(key for key in self.values if key.startswith(prefix))

    def delete(self, prefix: str) -> None:
        for key in [key for key in self.values if key == prefix or (prefix.endswith("/") and key.startswith(prefix))]:
            del self.values[key]
