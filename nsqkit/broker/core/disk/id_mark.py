"""The last tick whose message ids may have been given, kept on disk for the next start.

    nsqkit.ids.dat    the tick, and its CRC-32

The ids of one data path ascend over restarts, even if the clock was set back in between: messages on disk keep their
ids, and FIN cannot distinguish two messages with one id. The mark is written ahead, a minute at a
time (see ``nsqkit.broker.core.disk.guid``), in a worker thread, and before the messages of the same sync.

nsqd does not read this file. Its messages may be younger than the mark, but not younger than the newest modification
time of the files with messages, so ids begin after that time, too. The same holds when the file is missing or damaged.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.guid import TICK_LAST

if TYPE_CHECKING:
    from nsqkit.broker.core.disk.file_store import FileStore

FILE_NAME: Final = "nsqkit.ids.dat"

MODIFIED_MARGIN_NS: Final = 10**9
"""Messages may be this much younger than the modification time of their file: file systems round it."""

_LINE = re.compile(rb"(\d{1,13}) ([0-9a-f]{8})\n")


def read_used_tick(files: FileStore, reports: list[str]) -> int:
    """Return the last tick of earlier runs, -1 without any; append an error that was found to ``reports``."""
    return max(_marked(files, reports), _newest(files, reports))


def _marked(files: FileStore, reports: list[str]) -> int:
    try:
        data = files.read(FILE_NAME)
    except OSError as error:
        reports.append(f"{FILE_NAME} cannot be read, ids begin after the newest file: {error_text(error)}")
        return -1
    if data is None:
        return -1
    found = _LINE.fullmatch(data)
    if found is None or _checksum(found[1]) != found[2] or int(found[1]) > TICK_LAST:
        reports.append(f"{FILE_NAME} is damaged, ids begin after the newest file: {data[:80]!r}")
        return -1
    return int(found[1])


def _newest(files: FileStore, reports: list[str]) -> int:
    try:
        modified_ns = files.newest_ns(".diskqueue.")
    except OSError as error:
        reports.append(f"the times of the files cannot be read: {error_text(error)}")
        return -1
    tick = (modified_ns + MODIFIED_MARGIN_NS) >> 20
    return tick if tick <= TICK_LAST else -1


def write_mark(files: FileStore, tick: int) -> None:
    """Return when ``tick`` is on disk.

    Raises:
        OSError: it is not. Ids are given all the same: repeated ids after the clock is set back do less harm than
            messages that are refused.
    """
    digits = b"%d" % tick
    files.replace(FILE_NAME, b"%s %s\n" % (digits, _checksum(digits)))
    files.sync()


def _checksum(digits: bytes) -> bytes:
    return b"%08x" % zlib.crc32(digits)
