"""A disk that fails: faults of the data path of an embedded broker.

``FaultyFileStore`` is the data path as a broker uses it, with the faults of a ``Disk``. The faults are those that an
operating system reports: an operation raises OSError, and a write that fails has written a part. A test adds and
removes them in any thread while the broker runs.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias, get_args

from nsqkit.broker.file_store import DirectoryFileStore
from nsqkit.errors import OptionError

if TYPE_CHECKING:
    from nsqkit.broker.core.disk.file_store import File

Operation: TypeAlias = Literal["open", "read", "write", "sync", "rename", "remove"]

OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)
"""The operations that can fail; ``sync`` is that of a file or of the directory."""


class DiskFault:
    """A fault of a disk, for ``with``: it is removed at the end.

    Attributes:
        count: the operations that have failed by it.
    """

    def __init__(self, disk: Disk, operation: Operation, number: int, failures: range, capacity: int | None) -> None:
        self.count = 0
        self.operation = operation
        self.number = number
        self.capacity = capacity
        self._failures = failures
        self._numbers = count()  # each operation gets one, in whichever thread it is
        self._disk = disk

    def __repr__(self) -> str:
        return f"<DiskFault {self.operation} {errno.errorcode[self.number]} count={self.count}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()

    def remove(self) -> None:
        """End the fault; do nothing if it has been removed."""
        self._disk.remove(self)

    def applies(self, operation: Operation) -> bool:
        """Return whether the next operation fails, and count it."""
        if self.capacity is not None or operation != self.operation or next(self._numbers) not in self._failures:
            return False
        self.count += 1
        return True


class Disk:
    """The faults of one data path; they stay when the broker is restarted.

    Args:
        path: the directory.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._faults: tuple[DiskFault, ...] = ()  # replaced as a whole, since other threads read it

    def full(self, *, after: int = 0) -> DiskFault:
        """Have room for ``after`` more bytes; files that are removed make room again.

        A write beyond that writes the part that fits, and raises ENOSPC. A broker answers a publish with an error then,
        until its disk has room.

        Raises:
            OptionError: ``after`` is less than 0.
        """
        _check_count("after", after)
        return self._add(DiskFault(self, "write", errno.ENOSPC, range(0), self._used() + after))

    def error(
        self, operation: Operation, number: int = errno.EIO, *, times: int | None = None, after: int = 0
    ) -> DiskFault:
        """Have an operation raise OSError; a write that fails has written half.

        Args:
            operation: one of ``OPERATIONS``.
            number: of the error, from ``errno``.
            times: how often; None for always.
            after: operations of this kind that succeed before.

        Raises:
            OptionError: a value is not allowed.
        """
        if operation not in OPERATIONS:
            raise OptionError(f"operation is {operation!r}; allowed is one of {', '.join(OPERATIONS)}")
        if number not in errno.errorcode:
            raise OptionError(f"number is {number!r}; allowed is a number of an error, such as errno.EIO")
        _check_count("after", after)
        if times is not None:
            _check_count("times", times, least=1)
        end = 1 << 62 if times is None else after + times
        return self._add(DiskFault(self, operation, number, range(after, end), None))

    def heal(self) -> None:
        """End all faults."""
        self._faults = ()

    def remove(self, fault: DiskFault) -> None:
        """End one fault; do nothing if it has been removed."""
        self._faults = tuple(each for each in self._faults if each is not fault)

    def _add(self, fault: DiskFault) -> DiskFault:
        self._faults = (*self._faults, fault)
        return fault

    def _used(self) -> int:
        """Return the size of all files in bytes; a file that is being removed may be missing."""
        used = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    used += entry.stat().st_size
        return used

    # ---- called by the files ---------------------------------------------------------------------------------------

    def check(self, operation: Operation, name: str | None = None) -> None:
        """Raise OSError if this operation fails; an operating system names the file only where it gets a name."""
        for fault in self._faults:
            if fault.applies(operation):
                raise OSError(fault.number, os.strerror(fault.number), name)

    def write(self, size: int, more: int) -> tuple[int, DiskFault | None]:
        """Return how many of ``size`` bytes are written, and the fault if these are not all.

        ``more`` of them make the file longer.
        """
        for fault in self._faults:
            if fault.capacity is not None:
                missing = more - max(fault.capacity - self._used(), 0)
                if missing > 0:
                    fault.count += 1
                    return size - missing, fault
            elif fault.applies("write"):
                return size // 2, fault
        return size, None


class FaultyFile:
    """A file of a ``FaultyFileStore``; see ``nsqkit.broker.core.disk.file_store``."""

    def __init__(self, file: File, disk: Disk) -> None:
        self._file = file
        self._disk = disk

    def read_at(self, position: int, size: int) -> bytes:
        self._disk.check("read")
        return self._file.read_at(position, size)

    def write_at(self, position: int, data: bytes) -> None:
        more = max(position + len(data) - self._file.size(), 0)
        written, fault = self._disk.write(len(data), more)
        self._file.write_at(position, data[:written])
        if fault is not None:
            raise OSError(fault.number, os.strerror(fault.number))

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def size(self) -> int:
        return self._file.size()

    def sync(self) -> None:
        self._disk.check("sync")
        self._file.sync()

    def rewrite(self) -> None:
        self._file.rewrite()

    def share(self) -> FaultyFile:
        return FaultyFile(self._file.share(), self._disk)

    def close(self) -> None:
        self._file.close()


class FaultyFileStore(DirectoryFileStore):
    """The directory of ``disk``, with its faults."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.path)
        self._disk = disk

    def open(self, name: str, *, create: bool = False) -> File:
        self._disk.check("open", name)
        return FaultyFile(super().open(name, create=create), self._disk)

    def read(self, name: str) -> bytes | None:
        self._disk.check("read", name)
        return super().read(name)

    def rename(self, name: str, new_name: str) -> None:
        self._disk.check("rename", name)
        super().rename(name, new_name)

    def remove(self, name: str) -> None:
        self._disk.check("remove", name)
        super().remove(name)

    def sync(self) -> None:
        self._disk.check("sync")
        super().sync()


def _check_count(name: str, value: object, least: int = 0) -> None:
    if type(value) is not int or value < least:
        raise OptionError(f"{name} is {value!r}; allowed is {least} or more")
