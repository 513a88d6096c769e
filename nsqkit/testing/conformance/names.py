"""Cases: the names of topics and channels."""

from __future__ import annotations

from typing import Final

from nsqkit.testing.conformance.case import Subject
from nsqkit.testing.conformance.probe import CHANNEL, Probe

NAMES: Final = Subject("names", "internal/protocol/names.go")

_LONG = b"x" * 65


@NAMES.case()
def longest_topic(probe: Probe) -> None:
    """The name of a topic may have 64 characters."""
    probe.publish(probe.topic(64), b"x")


@NAMES.case()
def longest_channel(probe: Probe) -> None:
    """The name of a channel may have 64 characters."""
    probe.consumer(probe.topic(), channel=CHANNEL.rjust(64, b"x"))


@NAMES.case()
def all_characters(probe: Probe) -> None:
    """A name may have letters, digits, points, underscores and hyphens."""
    probe.consumer(probe.topic(), channel=b".aZ09_-#ephemeral")


for _name, _rule, _topic, _shown in (
    ("empty-topic", "An empty name of a topic is refused.", b"", b""),
    ("long-topic", "A name of 65 characters is refused.", _LONG, _LONG),
    ("character", "A name with another character is refused.", b"a!b", b"a!b"),
    ("only-the-suffix", "#ephemeral alone is no name.", b"#ephemeral", b"#ephemeral"),
    ("other-suffix", "A number sign stands only before ephemeral.", b"a#b", b"a#b"),
    ("not-utf8", "A name in an error is quoted as by Go's %q.", b'"\xff\t', rb"\"\xff\t"),
):
    NAMES.refusal(_name, _rule, b"PUB %b\n" % _topic, b'E_BAD_TOPIC PUB topic name "%b" is not valid' % _shown)

NAMES.refusal(
    "topic-of-sub",
    "SUB refuses a wrong name of a topic.",
    b"SUB a! <channel>\n",
    b'E_BAD_TOPIC SUB topic name "a!" is not valid',
)
NAMES.refusal(
    "channel-of-sub",
    "SUB refuses a wrong name of a channel with E_BAD_CHANNEL.",
    b"SUB <topic> a!\n",
    b'E_BAD_CHANNEL SUB channel name "a!" is not valid',
)
NAMES.refusal(
    "topic-of-mpub",
    "MPUB refuses a wrong name of a topic; the code is in the text twice.",
    b"MPUB a!\n",
    b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a!" is not valid',
)
NAMES.refusal(
    "topic-of-dpub",
    "DPUB refuses a wrong name of a topic.",
    b"DPUB a! 0\n",
    b'E_BAD_TOPIC DPUB topic name "a!" is not valid',
)
