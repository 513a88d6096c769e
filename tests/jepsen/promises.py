"""What brokers promise, as data.

A fault that is in no set of a promise must have no effect on it. One checker runs on all brokers, so a mistake of the
checker shows on nsqd.
"""

from __future__ import annotations

from typing import Final

import attrs

RESTARTS: Final = frozenset({"kill", "terminate", "clock"})
"""Faults that end the process; ``clock`` starts it at another time of day."""

KILLS: Final = frozenset({"kill", "clock"})
"""Faults that end the process without a chance to write anything."""

DISK_FAULTS: Final = frozenset({"full disk", "file limit"})

DELAYS: Final = frozenset({"cut", "half-open", "stall", "slices", "stop", "late"})
"""Faults that may delay frames: of the connections, a stopped process, which may have some in its buffers, and the
recording process."""


@attrs.frozen
class Promise:
    """What one kind of broker promises.

    Attributes:
        loses_at: faults at which acknowledged messages may be lost that are not finished at that time.
        stores_refused_at: faults during which a refused publish may be stored, or in some channels only.
        garbles_at: faults after which bodies may be cut, or have the bytes of others.
        doubles_at: faults that may leave a message twice, since a requeued one was written to the disk once more.
        doubles_waiting_at: faults that may leave a message twice before its first delivery, since its topic reads it
            once more, and its channel has stored it already.
        repeats_ids_at: faults after which a new message may get the id of an old one.
        repeats_ids_of: faults that have this effect on messages that are published meanwhile.
    """

    loses_at: frozenset[str] = frozenset()
    stores_refused_at: frozenset[str] = frozenset()
    garbles_at: frozenset[str] = frozenset()
    doubles_at: frozenset[str] = frozenset()
    doubles_waiting_at: frozenset[str] = frozenset()
    repeats_ids_at: frozenset[str] = frozenset()
    repeats_ids_of: frozenset[str] = frozenset()


PROMISES: Final = {
    # nsqkit with --durability=fsync: a message whose publisher received OK is never lost. A disk that fails may have no
    # space for the mark behind which ids begin after a restart.
    "fsync": Promise(stores_refused_at=DISK_FAULTS, repeats_ids_of=DISK_FAULTS),
    # nsqkit with --durability=nsqd: a kill loses what only the process has; a disk that fails loses nothing.
    "nsqkit": Promise(
        loses_at=KILLS,
        stores_refused_at=DISK_FAULTS,
        doubles_at=KILLS,
        repeats_ids_of=DISK_FAULTS,
    ),
    # nsqd 1.3.0: it also loses messages that it cannot write when they move to a channel or return from a consumer,
    # renames a file that it cannot open, and reads a record from its buffer that a full disk has cut.
    "nsqd": Promise(
        loses_at=KILLS | DISK_FAULTS,
        stores_refused_at=DISK_FAULTS,
        garbles_at=DISK_FAULTS,
        doubles_at=KILLS,
        doubles_waiting_at=KILLS,
        repeats_ids_at=DISK_FAULTS | {"clock"},
    ),
    # A broker without a data path: every end of the process loses everything.
    "memory": Promise(loses_at=RESTARTS, repeats_ids_at=RESTARTS),
}
