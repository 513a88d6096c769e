"""The positions of a queue on disk, and the names of its files.

    NAME.diskqueue.meta.dat      its positions
    NAME.diskqueue.000007.dat    records; a file is complete when writing has continued in the next one

The file of positions:

    DEPTH
    READFILE,READPOS
    WRITEFILE,WRITEPOS

A file with numbers that no queue can have counts as damaged. nsqd refuses those of more than 64 bits, too; and
Python's ``len`` cannot return such a depth.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from nsqkit.broker.core.disk.file_store import FileStore

NUMBER_MAX: Final = (1 << 62) - 1
"""The limit of every number: half the largest int64, so that sums stay within that."""

FILE_NUMBER_MAX: Final = 1 << 50
"""The limit of a file's number in positions; files that a queue writes after this one are still found."""

FILES_TRIED: Final = 100
"""File numbers that are tried one by one. For a longer range the directory is listed: positions may be damaged."""

OUT_OF_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors whose reason is the process, not the file."""

INFIX: Final = ".diskqueue."
"""What follows the name of a queue in the names of its files."""

META_SUFFIX: Final = "meta.dat"
"""The end of the name of the positions."""

RECORDS_SUFFIX: Final = re.compile(r"(\d{6,19})\.dat")
"""The end of the name of a file of records, with its number."""

_META = re.compile(
    rb"\s*(-?\d{1,19})\s+(\d{1,19})\s*,\s*(\d{1,19})\s+(\d{1,19})\s*,\s*(\d{1,19})(?!\d)"
)  # nsqd lets its depth go below 0


@attrs.define
class Position:
    """A place between two records."""

    file: int = 0
    offset: int = 0

    def __lt__(self, other: Position) -> bool:  # written out, since every ``take`` compares
        return self.file < other.file or (self.file == other.file and self.offset < other.offset)


Positions: TypeAlias = tuple[int, Position, Position]
"""The number of messages to read, where the next one is read, and where the next one is written."""


def to_meta(depth: int, read: Position, write: Position) -> bytes:
    """Return the content of the file."""
    return b"%d\n%d,%d\n%d,%d\n" % (depth, read.file, read.offset, write.file, write.offset)


def from_meta(meta: bytes) -> Positions | None:
    """Return the positions in the file, None if it is damaged."""
    found = _META.match(meta)
    if found is None:
        return None
    numbers = list(map(int, found.groups()))
    if max(map(abs, numbers)) > NUMBER_MAX or max(numbers[1], numbers[3]) > FILE_NUMBER_MAX:
        return None
    return numbers[0], Position(*numbers[1:3]), Position(*numbers[3:])


def meta_name(queue: str) -> str:
    """Return the name of the file of a queue's positions."""
    return f"{queue}{INFIX}{META_SUFFIX}"


def replace_damaged(files: FileStore, queue: str, damaged: bytes | None, meta: bytes) -> None:
    """Replace the file of a queue's positions, and keep what it holds as ``.bad``.

    Without positions a queue counts as empty, and its files are written over. So the file is replaced in one step, and
    one that cannot be read is not kept.

    Args:
        files: where the file is.
        queue: the name of the queue.
        damaged: what the file holds; None if it cannot be read.
        meta: the new positions.

    Raises:
        OSError: it cannot be written; the old content is still there.
    """
    name = meta_name(queue)
    if damaged is not None:
        files.replace(f"{name}.bad", damaged)
    try:
        files.replace(name, meta)
    except IsADirectoryError:
        files.rename(name, f"{name}.bad")
        files.replace(name, meta)


def file_name(queue: str, number: int) -> str:
    """Return the name of a file of a queue's records."""
    return f"{queue}{INFIX}{number:06d}.dat"


def file_numbers(files: FileStore, queue: str, first: int, last: int) -> Sequence[int]:
    """Return the numbers of a queue's files from ``first`` to ``last``, in order; some of the files may not exist.

    Where the directory has to be listed, an OSError is raised if that fails.
    """
    if last - first < FILES_TRIED:
        return range(first, last + 1)
    begin = f"{queue}{INFIX}"
    names = [name for name in files.names(begin) if name.startswith(begin)]
    found = map(RECORDS_SUFFIX.fullmatch, (name.removeprefix(begin) for name in names))
    numbers = {int(each[1]) for each in found if each is not None}
    return sorted(number for number in numbers if first <= number <= last)
