"""The result of a check: counts, and sentences about the first events that broke a promise."""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs

EXAMPLES_MAX: Final = 5

BROKEN: Final = {
    "lost": "acknowledged, never finished, and no longer in the broker",
    "stuck": "acknowledged, still in the broker, and not delivered after the faults had ended",
    "unexpected": "delivered, and never published to this broker, or refused",
    "duplicated": "delivered twice without a reason",
    "revived": "delivered after a confirmed FIN without a reason",
    "beyond RDY": "in flight on a connection beyond its RDY",
    "shared ids": "two messages with one id, without a reason",
    "died": "the process of a broker ended, and no fault had ended it",
}
"""Names of things that must not happen, and their meaning."""

COUNTED: Final = {
    "attempted": "publishes",
    "acknowledged": "publishes answered with OK",
    "refused": "publishes answered with an error",
    "unknown": "publishes without an answer",
    "recovered": "unknown, and delivered",
    "delivered": "deliveries, over all channels",
    "finished": "FINs sent, and not refused",
    "confirmed": "FINs that the broker has processed",
    "duplicated, explained": "by a timeout, a requeue, a restart or a delayed frame",
    "revived, explained": "by a kill before the FIN was recorded on disk, or one that left the message twice",
    "shared ids, explained": "by a fault at which this broker may do so",
    "refused, and stored": "by a disk that failed for some of the channels",
    "garbled": "a body that was never published, after a disk fault at which this broker may do so",
    "lost, as promised": "unfinished at a fault at which this broker may lose messages",
}
"""Counts of things that may happen, and their meaning."""


@attrs.define(eq=False)
class Report:
    """What a history shows.

    Attributes:
        counts: by name, of ``BROKEN`` and ``COUNTED``.
        examples: sentences, by name.
        faults: how often each fault was.
        calm: seconds from the end of the faults to the end of the run.
    """

    counts: Counter[str] = attrs.field(factory=Counter)
    examples: dict[str, list[str]] = attrs.field(factory=dict)
    faults: Counter[str] = attrs.field(factory=Counter)
    calm: float = 0.0

    def add(self, name: str, sentence: str) -> None:
        """Count something, and keep the first sentences."""
        self.counts[name] += 1
        sentences = self.examples.setdefault(name, [])
        if len(sentences) < EXAMPLES_MAX:
            sentences.append(sentence)

    @property
    def broken(self) -> dict[str, int]:
        """What happened that must not, and how often."""
        return {name: self.counts[name] for name in BROKEN if self.counts[name]}

    def table(self) -> str:
        """Return everything as text."""
        lines = [f"{name:<22}{self.counts[name]:>10}  {text}" for name, text in {**COUNTED, **BROKEN}.items()]
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        lines.append(f"{'faults':<22}{self.faults.total():>10}  {faults}")
        lines.append(f"{'seconds until drained':<22}{self.calm:>10.1f}")
        for name, count in self.broken.items():
            lines.append(f"\n{count} {name}: {BROKEN[name]}")
            lines += [f"  {sentence}" for sentence in self.examples[name]]
        return "\n".join(lines)
