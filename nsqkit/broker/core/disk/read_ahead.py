"""The file that a queue on disk reads, and the records that have been read ahead.

One call of the system brings up to 256 KiB of records, or one record that is longer. Only whole records are returned,
and no bytes behind the end that the caller gives are looked at.
"""

from __future__ import annotations

from nsqkit.broker.core.disk.file_store import File, FileStore
from nsqkit.broker.core.disk.positions import Position, file_name, file_numbers
from nsqkit.broker.core.disk.records import LENGTH_SIZE, from_records, record_end
from nsqkit.broker.core.disk.recovery import READ_SIZE


class UnreadableError(Exception):
    """There is no valid message at the position to read."""


class ReadAhead:
    """Reads one file after another.

    Attributes:
        size: of the open file, as it was when it was opened; the queue corrects it when it has written more.
    """

    __slots__ = ("_body_size_max", "_chunk", "_chunk_offset", "_files", "_handle", "size")

    def __init__(self, files: FileStore, body_size_max: int) -> None:
        self._files = files
        self._body_size_max = body_size_max
        self._handle: File | None = None
        self._chunk = b""
        self._chunk_offset = 0  # of the next record, in the chunk
        self.size = 0

    @property
    def is_open(self) -> bool:
        """Whether a file is open."""
        return self._handle is not None

    def open(self, name: str) -> None:
        """Open a file to read, while none is open; raise OSError if that fails."""
        handle = self._files.open(name)
        try:
            self.size = handle.size()
        except OSError:
            handle.close()
            raise
        self._handle = handle

    def close(self) -> None:
        """Close the file, and drop the records that have been read ahead."""
        self._chunk = b""
        self._chunk_offset = 0
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def take(self, offset: int, end: int, count: int) -> tuple[list[bytes], int]:
        """Return up to ``count`` messages, and the offset of the record behind them.

        Args:
            offset: of the first record: 0, or as the last call returned it.
            end: of the bytes that may be read.
            count: at least one.

        Returns:
            No message if there is no whole record at ``offset``.

        Raises:
            OSError: the file cannot be read.
        """
        first = self._chunk_offset
        frames, self._chunk_offset = from_records(self._chunk, first, count, self._body_size_max)
        if not frames and offset < end:
            self._chunk, first = self._read(offset, end), 0
            frames, self._chunk_offset = from_records(self._chunk, first, count, self._body_size_max)
        return frames, offset + self._chunk_offset - first

    def _read(self, offset: int, end: int) -> bytes:
        assert self._handle is not None
        left = end - offset
        chunk = self._handle.read_at(offset, min(READ_SIZE, left))
        size = record_end(chunk, 0, self._body_size_max) if len(chunk) >= LENGTH_SIZE else None
        if size is not None and len(chunk) < size <= left:
            chunk = self._handle.read_at(offset, size)
        return chunk

    def finds_record(self, offset: int, end: int) -> bool:
        """Return whether a record can begin at ``offset``: its length is valid, and it ends before ``end``.

        If the file cannot be read, an OSError is raised.
        """
        assert self._handle is not None
        head = self._handle.read_at(offset, LENGTH_SIZE)
        size = record_end(head, 0, self._body_size_max) if len(head) == LENGTH_SIZE else None
        return size is not None and offset + size <= end


def read_between(files: FileStore, queue: str, begin: Position, end: Position, body_size_max: int) -> list[bytes]:
    """Return all messages of a queue between two positions; raise OSError if they cannot be read."""
    frames: list[bytes] = []
    if not begin < end:
        return frames
    ahead = ReadAhead(files, body_size_max)
    for number in file_numbers(files, queue, begin.file, end.file):
        if number == end.file and not end.offset:
            break  # the file does not exist yet
        ahead.open(file_name(queue, number))
        try:
            offset = begin.offset if number == begin.file else 0
            end_offset = end.offset if number == end.file else ahead.size
            while offset < end_offset and (found := ahead.take(offset, end_offset, READ_SIZE))[0]:
                frames += found[0]
                offset = found[1]
        finally:
            ahead.close()
    return frames
