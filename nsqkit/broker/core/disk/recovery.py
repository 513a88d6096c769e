"""What a crash has left in a file of messages, behind the end that was noted for it.

The rule it guards: what was written whole is read, and counted, after whatever end of the process; what was not is
kept beside the file, and is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.file_store import File, FileStore
from nsqkit.broker.core.disk.records import record_ends

READ_SIZE: Final = 256 * 1024
"""Bytes that are read at once, unless a record is longer."""


def size_of(directory: FileStore, name: str) -> int:
    """Return the size of a file, 0 if there is none."""
    try:
        file = directory.open(name)
    except FileNotFoundError:
        return 0
    try:
        return file.size()
    finally:
        file.close()


def count_unnoted(
    directory: FileStore,
    name: str,
    start: int,
    noted_end: int,
    body_size_max: int,
    report: Callable[[str], None],
) -> int:
    """Return how many whole records a file has behind ``noted_end``, and cut off what is none.

    Args:
        directory: where the file is.
        name: the file's.
        start: where a record begins for certain; ``noted_end`` may be wrong, too.
        noted_end: the end of those that are counted already.
        body_size_max: the limit for a message's body.
        report: is told what is cut off.
    """
    file = directory.open(name)
    try:
        size = file.size()
        position = start
        count = 0
        while position < size:
            data = file.read_at(position, max(READ_SIZE, body_size_max + 64))
            ends = record_ends(data, body_size_max)
            if not ends:
                break
            count += sum(position + end > noted_end for end in ends)
            position += ends[-1]
        if noted_end <= position < size:
            cut_off(directory, file, name, position, report)
        return count
    finally:
        file.close()


def cut_off(
    directory: FileStore, file: File, name: str, position: int, report: Callable[[str], None]
) -> None:
    """Set aside what a file has behind ``position``, so that what stands before it stays as it is."""
    try:
        count = file.size() - position
        report(f"the last {count} bytes of {name} are no message, and are set aside as {name}.bad")
        directory.replace(f"{name}.bad", file.read_at(position, count))
        file.truncate(position)
        file.sync()  # or they might be back, when more has been written to the next file
    except OSError as error:  # then the reader comes upon them
        report(f"{name} cannot be mended: {error_text(error)}")
