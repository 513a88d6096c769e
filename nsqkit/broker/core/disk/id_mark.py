"""Which message ids a data path has seen, kept over the end of a broker.

    nsqkit.ids.dat    the last tick whose ids may have been given, and its CRC-32

The rule it guards: the ids of one data path ascend over restarts, even if the clock was set back in between. Messages
on disk keep their ids, and two messages with one id cannot be told apart when they are finished. Ticks are reserved
before they are used, a minute of them at a time, so that the file is written once a minute and not for each message.

nsqd does not know the file. Messages that it has written may be younger than the mark, but not younger than the newest
modification time of the files with messages, so ids begin after that time, too. The same serves where the file is
missing or damaged.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.guid import TICK_LAST

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.broker.core.disk.file_store import FileStore

FILE_NAME: Final = "nsqkit.ids.dat"

BLOCK_TICKS: Final = (60 * 10**9) >> 20
"""Ticks that are reserved at a time."""

RETRY_TICKS: Final = 10**9 >> 20
"""Ticks until the file is written again after that has failed."""

MODIFIED_MARGIN_NS: Final = 10**9
"""How much later than the modification time of a file its messages may have been published: file systems round it."""

_LINE = re.compile(rb"(\d{1,13}) ([0-9a-f]{8})\n")


class IdMark:
    """The mark of one data path.

    Args:
        directory: where its file is.
        report: called with a sentence when the file could not be read or written.
    """

    def __init__(self, directory: FileStore, report: Callable[[str], None]) -> None:
        self._directory = directory
        self._report = report
        self._last = -1
        self._fails = False

    def read(self) -> None:
        """Learn what was given before; to be called before any message is read or written."""
        self._last = max(self._marked(), self._newest())

    def _marked(self) -> int:
        try:
            data = self._directory.read(FILE_NAME)
        except OSError as error:
            self._report(f"{FILE_NAME} cannot be read, ids begin after the newest file: {error_text(error)}")
            return -1
        if data is None:
            return -1
        found = _LINE.fullmatch(data)
        if found is None or _checksum(found[1]) != found[2] or int(found[1]) > TICK_LAST:
            self._report(f"{FILE_NAME} is damaged, ids begin after the newest file: {data[:80]!r}")
            return -1
        return int(found[1])

    def _newest(self) -> int:
        try:
            modified_ns = self._directory.newest_ns(".diskqueue.")
        except OSError as error:
            self._report(f"the times of the files cannot be read: {error_text(error)}")
            return -1
        tick = (modified_ns + MODIFIED_MARGIN_NS) >> 20
        return tick if tick <= TICK_LAST else -1

    def reserve(self, tick: int) -> tuple[int, int]:
        """Return the first tick, from ``tick`` on, whose ids were not given before, and the last of those reserved.

        If the file cannot be written ids are given all the same, and it is tried again soon: to refuse messages would
        be worse than ids that come again if the clock is set back.
        """
        first = max(tick, self._last + 1)
        try:
            self._write(first + BLOCK_TICKS)
        except OSError as error:
            if not self._fails:
                self._report(f"{FILE_NAME} cannot be written: {error_text(error)}")
            self._fails = True
            self._last = first + RETRY_TICKS
        else:
            self._fails = False
        return first, self._last

    def close(self, tick: int) -> None:
        """Give back what was reserved and not used; ``tick`` is that of the newest id, -1 if none was given."""
        if tick < 0:
            return
        try:
            self._write(tick)
        except OSError as error:
            self._report(f"{FILE_NAME} cannot be written: {error_text(error)}")

    def _write(self, last: int) -> None:
        digits = b"%d" % last
        self._directory.replace(FILE_NAME, b"%s %s\n" % (digits, _checksum(digits)))
        self._directory.sync()  # before any message that relies on it is on disk
        self._last = last


def _checksum(digits: bytes) -> bytes:
    return b"%08x" % zlib.crc32(digits)
