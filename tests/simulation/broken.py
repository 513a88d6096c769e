"""The numbers and names of the invariants, and the error of a world in which one of them is broken."""

from __future__ import annotations

from typing import Final

INVARIANTS: Final = {
    1: "an acknowledged message is in exactly one place of each channel",
    2: "a refused publish is never delivered",
    3: "only messages that were published are delivered, whole",
    4: "an id names one message of a topic, over restarts",
    5: "a delivery has one owner",
    6: "no more messages are in flight than RDY and max_in_flight allow",
    7: "nothing is delivered by a paused channel, after CLS, or before it is due",
    8: "attempts rise by one with each delivery",
    9: "a FIN counts as confirmed if the broker has accepted it, and its message is not delivered again",
    10: "an answer of another client changes nothing",
    11: "each command has its one answer, in order",
    12: "the next deadline is not after the first thing that is due, nor in the past twice",
    13: "statistics equal the counts of the oracle, and no message is missing in their sum",
    14: "topics and channels exist as the commands make them",
    15: "a restart finds the messages that were promised",
    16: "no message is delivered before its deferral ends",
    17: "files agree with each other, and belong to topics and channels that exist",
    18: "a consumer that closes requeues what it has not begun, and nothing that it has finished",
    19: "no more handlers run at once than are allowed, one of each lane, and none after the end",
    20: "a publish arrives once unless it may be repeated",
    21: "nsqlookupds list the live brokers but for tombstones, and consumers find what they list",
    22: "no command has an effect before its grant or after its end, and no secret is shown",
    23: "memory and files are no more than messages, sessions and channels need",
    24: "nothing is kept for connections that are gone",
    25: "a bad client or a bad file ends no process and no other connection",
    26: "every message is finished once all faults have ended",
    27: "a ready consumer gets the messages that wait, and each of its connections gets RDY in turn",
    28: "connections and lists of brokers are complete again in a bounded time",
    29: "time does not stand still",
    30: "a stop ends in time, and every client gets an answer",
    31: "a message is finished only when its row is in a slot",
    32: "a message has exactly one row, unless a live owner stalled",
    33: "all replays of a partition are equal",
    34: "a publish with enough attempts succeeds while one of its nsqds is healthy",
    35: "a publish counts as lost only if it was given to a connection",
    36: "a client dials soon after a useful connection, and less and less often while it is refused",
}
"""The numbers are those of the design of the simulation; 31 to 33 are about slot logs, and the others came later."""


class Broken(AssertionError):
    """An invariant is broken.

    Args:
        number: of the invariant.
        text: the facts.
    """

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {INVARIANTS[number]}: {text}")
        self.number = number


def conclude(number: int, holds: bool, text: str) -> None:
    """Raise ``Broken`` unless an invariant holds."""
    if not holds:
        raise Broken(number, text)
