"""When deferred messages are due, kept on disk while the broker is stopped: ``--keep-deferred``.

    NAME.deferred.dat    a line for each message: its id, and its time or the rest of its delay, in ns

The messages themselves are in nsqd's files, so nsqd can continue from them; it ignores this file. A message without a
line is delivered at once. So a time may be lost, never a message.

The owner of a queue looks its messages up in ``by_id`` when it takes them out, and calls ``write`` at the end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsqkit.broker.core.disk.error_text import error_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqkit.broker.core.disk.file_store import FileStore
    from nsqkit.broker.core.disk.sync import SyncState

_LINE = re.compile(rb"^([0-9a-f]{16}) (\d{1,19})$", re.MULTILINE)


class DeferredTimes:
    """The times of the deferred messages of one queue; without ``files`` they are not kept.

    Attributes:
        by_id: the times of messages in the queue's files; the owner removes those that it has used.
    """

    def __init__(self, files: FileStore | None = None, name: str = "", state: SyncState | None = None) -> None:
        self.by_id: dict[bytes, int] = {}
        self._files = files
        self._file_name = f"{name}.deferred.dat"
        self._state = state
        if files is None:
            return
        try:
            data = files.read(self._file_name) or b""
        except OSError as error:
            self._report("read", error)
            return
        self.by_id.update((message_id, int(number)) for message_id, number in _LINE.findall(data))

    @property
    def has_file(self) -> bool:
        """Whether times are kept."""
        return self._files is not None

    def write(self, times: Mapping[bytes, int]) -> None:
        """Write the times of these messages, by id, and those that are still in ``by_id``."""
        if self._files is None:
            return
        times = {**self.by_id, **times}
        try:
            if times:
                lines = b"".join(b"%s %d\n" % item for item in times.items())
                self._files.replace(self._file_name, lines)
            else:
                self._files.remove(self._file_name)
        except OSError as error:
            self._report("written", error)

    def _report(self, what: str, error: OSError) -> None:
        if self._state is not None:
            text = error_text(error)
            self._state.report(f"{self._file_name} cannot be {what}, its messages come at once: {text}")

    def delete(self) -> None:
        """Drop all times, and remove the file."""
        self.by_id.clear()
        self.write({})
