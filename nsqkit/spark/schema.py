"""A message as a row of a table.

``KEY_COLUMNS`` identify a message. An id is unique within one topic of one nsqd (nsqd has an id factory for each
topic), and each delivery of a message has the same id, so all three columns are needed to recognize a row that came
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nsqkit.consumer import Message

KEY_COLUMNS = ("nsqd_address", "topic", "id")
"""The columns to deduplicate on: ``frame.dropDuplicates([*KEY_COLUMNS])``."""


class MessageRow(NamedTuple):
    """One delivery of a message, as a plain value that pickles.

    Attributes:
        nsqd_address: the nsqd that delivered it, as the spec names it.
        topic: its topic.
        id: 16 hexadecimal digits.
        timestamp_ns: when it was published, ns since the Unix epoch, by the nsqd's clock.
        attempts: deliveries so far, this one included.
        body: the published bytes.
    """

    nsqd_address: str
    topic: str
    id: str
    timestamp_ns: int
    attempts: int
    body: bytes

    @property
    def key(self) -> tuple[str, str, str]:
        """The values of ``KEY_COLUMNS``."""
        return self[:3]


def message_row(message: Message, topic: str) -> MessageRow:
    """Return a consumer's message as a row."""
    return MessageRow(
        message.nsqd_address,
        topic,
        message.id.decode("ascii", "backslashreplace"),
        message.timestamp_ns,
        message.attempts,
        message.body,
    )
