"""Slots in a directory of a local or shared file system.

A key is written to a temporary file, which is synchronised and then linked to its name: ``link`` fails if the name
exists, on NFS too, and a reader sees all bytes or none. ``rename`` would replace the name. The directory is
synchronised as well, since otherwise a power failure may remove the name. Names that begin with a dot are no keys.
"""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from nsqkit.errors import OptionError

MMAP_MIN: Final = 64 * 1024
"""Bytes from which a file is mapped instead of read: a replay then holds no copy of a slot."""


@attrs.frozen
class LocalStore:
    """A SlotStore in a directory, which is created if it is missing.

    Raises:
        OptionError: files cannot be created in it, or hard links are not supported.
    """

    directory: Path = attrs.field(converter=Path)

    def __attrs_post_init__(self) -> None:
        probe = self.directory / f".probe-{secrets.token_hex(8)}"
        link = probe.with_suffix(".link")
        try:
            make_directory(self.directory)
            probe.touch()
            os.link(probe, link)
        except OSError as error:
            raise OptionError(
                f"walLocation {str(self.directory)!r} cannot hold slots: {error.strerror or error}. "
                "A directory is required in which files and hard links can be created"
            ) from error
        finally:
            for path in (probe, link):
                with suppress(OSError):
                    path.unlink()

    def put_if_absent(self, key: str, *parts: bytes | memoryview) -> bool:
        path = self.directory / key
        make_directory(path.parent)
        temporary = path.parent / f".{secrets.token_hex(8)}"
        try:
            with open(temporary, "xb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)
        return True

    def get(self, key: str) -> bytes | memoryview | None:
        try:
            # A replay opens each slot twice; ``open`` would take three times as long.
            descriptor = os.open(f"{self.directory}/{key}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(descriptor).st_size
            if size < MMAP_MIN:
                return os.read(descriptor, size)
            return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)

    def list(self, prefix: str) -> list[str]:
        found = []
        for folder, _, names in os.walk(self.directory / prefix):
            keys = (Path(folder, name) for name in names if not name.startswith("."))
            found += [key.relative_to(self.directory).as_posix() for key in keys]
        return sorted(found)

    def delete(self, prefix: str) -> None:
        path = self.directory / prefix
        if not prefix.endswith("/"):
            path.unlink(missing_ok=True)
        else:
            with suppress(FileNotFoundError):
                shutil.rmtree(path)


def make_directory(path: Path) -> None:
    """Create a directory and the missing ones above it, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a crash, as fsync of a file does for its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
