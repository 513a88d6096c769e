"""The nsqds of a subscription, and a clock, without I/O."""

from __future__ import annotations

import attrs

from nsqkit.spark.batch_plan import SourceNode


@attrs.frozen
class Messages:
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    finished_count: int = 0


@attrs.define
class FakeCluster:
    """Nsqds with the backlogs that a test sets; the last one stays."""

    addresses: list[str] = attrs.field(factory=lambda: ["a:4150", "b:4150"])
    backlogs: list[Messages | None] = attrs.field(factory=lambda: [Messages(depth=10)])

    def nodes(self) -> list[SourceNode]:
        return [SourceNode(address, "orders") for address in self.addresses]

    def backlog(self) -> Messages | None:
        return self.backlogs.pop(0) if len(self.backlogs) > 1 else self.backlogs[0]


@attrs.define
class ManualTime:
    """A clock that moves when the stream waits."""

    ns: int = 0
    waits: list[float] = attrs.field(factory=list)

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.ns += round(seconds * 1e9)
