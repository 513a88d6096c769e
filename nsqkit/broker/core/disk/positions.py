"""Where a queue on disk stands, and what its files are called.

    NAME.diskqueue.meta.dat      its positions
    NAME.diskqueue.000007.dat    records; a file is complete when writing has gone on in the next one

The positions:

    DEPTH
    READFILE,READPOS
    WRITEFILE,WRITEPOS

The rule it guards: numbers that no queue can have are no positions. Go's numbers have 64 bits, so nsqd does not read
them either; and a depth that Python's ``len`` cannot return would end the broker.

How to read it: ``Position`` is one place, ``to_meta`` and ``from_meta`` are the file; then come the names.
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
"""The limit of every number: half of what an int64 has, so that counting on from it does not leave that."""

FILES_TRIED: Final = 100
"""File numbers that are tried one by one; if there are more the directory is listed, since positions may be damaged."""

OUT_OF_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors that tell of the process, and not of the file."""

_META = re.compile(
    rb"\s*(-?\d{1,19})\s+(\d{1,19})\s*,\s*(\d{1,19})\s+(\d{1,19})\s*,\s*(\d{1,19})(?!\d)"
)  # nsqd lets its depth go below 0


@attrs.define
class Position:
    """A place between two records."""

    file: int = 0
    offset: int = 0

    def __lt__(self, other: Position) -> bool:  # by hand, since every ``take`` compares
        return self.file < other.file or (self.file == other.file and self.offset < other.offset)


Positions: TypeAlias = tuple[int, Position, Position]
"""How many messages are to be read, where the next one is read, and where the next one is written."""


def to_meta(depth: int, read: Position, write: Position) -> bytes:
    """Return the content of the file."""
    return b"%d\n%d,%d\n%d,%d\n" % (depth, read.file, read.offset, write.file, write.offset)


def from_meta(meta: bytes) -> Positions | None:
    """Return what the file says, None if it is damaged."""
    found = _META.match(meta)
    if found is None:
        return None
    numbers = list(map(int, found.groups()))
    if max(map(abs, numbers)) > NUMBER_MAX:
        return None
    return numbers[0], Position(*numbers[1:3]), Position(*numbers[3:])


def meta_name(queue: str) -> str:
    """Return what the file of a queue's positions is called."""
    return f"{queue}.diskqueue.meta.dat"


def replace_damaged(directory: FileStore, queue: str, damaged: bytes | None, meta: bytes) -> None:
    """Write the file of a queue's positions anew, and keep what was there as ``.bad``.

    Args:
        directory: where the file is.
        queue: its name.
        damaged: what was there, None if it cannot be read.
        meta: what is to be there.

    Raises:
        OSError: it cannot be written; then what was there still is, unless it could not be read.
    """
    name = meta_name(queue)
    if damaged is None:
        directory.rename(name, f"{name}.bad")
    else:
        directory.replace(f"{name}.bad", damaged)
    directory.replace(name, meta)


def file_name(queue: str, number: int) -> str:
    """Return what a file of a queue's records is called."""
    return f"{queue}.diskqueue.{number:06d}.dat"


def file_numbers(directory: FileStore, queue: str, first: int, last: int) -> Sequence[int]:
    """Return the numbers of a queue's files from ``first`` to ``last``, in order; some may not be there.

    Raises:
        OSError: the directory cannot be listed.
    """
    if last - first < FILES_TRIED:
        return range(first, last + 1)
    name = re.compile(re.escape(queue) + r"\.diskqueue\.(\d{6,19})\.dat")
    found = map(name.fullmatch, directory.names(f"{queue}.diskqueue."))
    numbers = {int(each[1]) for each in found if each is not None}
    return sorted(number for number in numbers if first <= number <= last)
