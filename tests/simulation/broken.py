"""The numbers and names of the invariants, and the error of a world in which one of them is broken."""

from __future__ import annotations

from typing import Final

INVARIANTS: Final = {
    1: "an acknowledged message is in exactly one place of each channel",
    2: "a refused publish is never delivered",
    3: "only messages that were published are delivered, whole",
    4: "an id names one message of a topic, over restarts",
    5: "a delivery has one owner",
    6: "no more messages are in flight than RDY allows",
    7: "nothing is delivered by a paused channel, after CLS, or before it is due",
    8: "attempts rise by one with each delivery",
    10: "an answer of another client changes nothing",
    11: "each command has its one answer, in order",
    12: "the next deadline is not after the first thing that is due",
    14: "topics and channels exist as the commands make them",
    15: "a restart finds the messages that were promised",
    16: "no message is delivered before its deferral ends",
    23: "finished messages leave the disk",
    24: "nothing is kept for connections that are gone",
    26: "every message is finished once all faults have ended",
    27: "a ready consumer gets the messages that wait",
    29: "time does not stand still",
    31: "a message is finished only when its row is in a slot",
    32: "a message has exactly one row, unless a live owner stalled",
    33: "all replays of a partition are equal",
}
"""The numbers are those of the design of the simulation; 31 to 33 are about Spark's slot logs."""


class Broken(AssertionError):
    """An invariant is broken.

    Args:
        number: of the invariant.
        text: the facts.
    """

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {INVARIANTS[number]}: {text}")
        self.number = number
