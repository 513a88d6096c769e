"""When deferred messages are due, kept over the end of a broker: ``--keep-deferred``.

    NAME.deferred.dat    a line for each message: its id, and its time or what is left of its delay, in ns

The rule it guards: the messages themselves are in nsqd's files, as ever, so nsqd can go on from them, too; it passes
over this file, and what a broker does not find in it comes at once. So a time may be lost, never a message.

How to read it: whoever has a queue reads ``by_id`` when messages come out of it, and calls ``keep`` at the end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsqkit.broker.core.disk.error_text import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsqkit.broker.core.disk.file_store import FileStore

_LINE = re.compile(rb"^([0-9a-f]{16}) (\d{1,19})$", re.MULTILINE)


class DeferredTimes:
    """The times of the deferred messages of one queue.

    Args:
        directory: where its file is; None to keep none.
        name: what the file's name begins with.
        report: called with a sentence when the file could not be read or written.

    Attributes:
        by_id: of messages that came with the queue's files; who has taken one forgets it here.
    """

    def __init__(
        self, directory: FileStore | None = None, name: str = "", report: Callable[[str], None] | None = None
    ) -> None:
        self.by_id: dict[bytes, int] = {}
        self._directory = directory
        self._file_name = f"{name}.deferred.dat"
        self._report = report
        if directory is not None:
            self._read(directory)

    def _read(self, directory: FileStore) -> None:
        try:
            data = directory.read(self._file_name) or b""
        except OSError as error:
            self._complain("read", error)
            return
        self.by_id.update((message_id, int(number)) for message_id, number in _LINE.findall(data))

    @property
    def are_kept(self) -> bool:
        """Whether there is a file for them."""
        return self._directory is not None

    def keep(self, times: Mapping[bytes, int]) -> None:
        """Write the times of these messages, by id, beside those which are still in ``by_id``."""
        if self._directory is None:
            return
        whole = {**self.by_id, **times}
        try:
            if whole:
                lines = b"".join(b"%s %d\n" % item for item in whole.items())
                self._directory.replace(self._file_name, lines)
            else:
                self._directory.remove(self._file_name)
        except OSError as error:
            self._complain("written", error)

    def _complain(self, what: str, error: OSError) -> None:
        if self._report is not None:
            self._report(
                f"{self._file_name} cannot be {what}, its messages come at once: {error_text(error)}"
            )

    def delete(self) -> None:
        """Forget all, and leave no file."""
        self.by_id.clear()
        self.keep({})
