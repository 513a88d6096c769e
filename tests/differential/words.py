"""Names and numbers for plans: good, bad, and at the limits."""

from __future__ import annotations

from random import Random
from typing import Final

TOPICS: Final = ("<t0>", "<t1>", "<t2>#ephemeral")
CHANNELS: Final = ("c0", "c1", "c0#ephemeral")

BAD_NAMES: Final = (
    *("", "#ephemeral", "a#b", "a#ephemeral#ephemeral", "x" * 65, "x" * 64 + "#ephemeral", "bad!", "\xff", "a\tb", '"'),
    *("*", "é", "\\", "a/b", "a:b", "\0", "%41", "a\x7f", "'"),
)
BAD_NUMBERS: Final = (
    *(
        "",
        "-1",
        "+1",
        "1.0",
        "1e3",
        "x",
        " 1",
        "0x1",
        "00",
        "01",
        "2501",
        "2500",
        "6",
        "5",
        "9" * 30,
        "-0",
        "\u0661"[:0],
    ),
    *(str(2**31), str(2**32), str(2**63 - 1), str(2**63), str(2**64 - 1), str(2**64), "1_0", "1\r", "\0"),
)
# nsqd delivers deferred messages at a scan, so none may become due during a sequence.
BAD_DELAYS: Final = (
    *(each for each in BAD_NUMBERS if not each.strip(" +\r").isdigit() or not 0 < int(each) < 60_000),
    *("+3600000", "3600000\r"),
)
LONG_NS: Final = 3_600_000_000_000


def channel_of(random: Random) -> str:
    """Return the name of a channel."""
    return random.choice(CHANNELS)
