"""A second reader of a data path, which reads it as nsqd does and shares no code with the broker (invariant 17).

The files of a stopped broker have to agree with each other: a queue's depth is the number of records between its
positions, each file belongs to a queue of ``nsqd.dat``, and none is left over.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from tests.simulation.broken import Broken, conclude

META: Final = re.compile(rb"(\d+)\n(\d+),(\d+)\n(\d+),(\d+)\n")
RECORDS: Final = re.compile(r"(.+)\.diskqueue\.(\d{6,})\.dat")
OWN: Final = re.compile(r"nsqd\.dat|nsqkit\.ids\.dat|(.+)\.deferred\.dat|(.+)\.diskqueue\.meta\.dat")
HEADER_LENGTH: Final = 26
FILES_MAX: Final = 2  # of a queue without messages

Messages = Counter[tuple[bytes, bytes, bytes]]


def read(files: Mapping[str, bytes]) -> Messages:
    """Return the messages of a data path, by topic, channel (empty for the topic) and body.

    Raises:
        Broken: files do not agree.
    """
    found: Messages = Counter()
    for name, meta in files.items():
        queue = name.removesuffix(".diskqueue.meta.dat")
        if queue != name:
            topic, _, channel = queue.encode().partition(b":")
            found.update((topic, channel, body) for body in _bodies(files, queue, meta))
    return found


def _bodies(files: Mapping[str, bytes], queue: str, meta: bytes) -> list[bytes]:
    numbers = META.fullmatch(meta)
    if numbers is None:
        raise Broken(17, f"the positions of {queue} are {meta!r}")
    depth, file, offset, last_file, end = map(int, numbers.groups())
    bodies: list[bytes] = []
    while (file, offset) < (last_file, end):
        data = files.get(f"{queue}.diskqueue.{file:06d}.dat")
        if data is None:
            raise Broken(17, f"file {file} of {queue} is missing")
        data = data[:end] if file == last_file else data
        while offset < len(data):
            length = int.from_bytes(data[offset : offset + 4], "big")
            record = data[offset + 4 : offset + 4 + length]
            if length < HEADER_LENGTH or len(record) < length:
                raise Broken(17, f"no whole record is at {offset} in file {file} of {queue}")
            bodies.append(record[HEADER_LENGTH:])
            offset += 4 + length
        if file == last_file:
            break
        file, offset = file + 1, 0
    conclude(17, depth == len(bodies), f"{queue} has a depth of {depth}, and {len(bodies)} records")
    return bodies


def names(files: Mapping[str, bytes]) -> dict[str, set[str]]:
    """Return the topics in ``nsqd.dat``, each with its channels."""
    document: Any = json.loads(files["nsqd.dat"])
    return {
        topic["name"]: {channel["name"] for channel in topic["channels"] or ()} for topic in document["topics"] or ()
    }


def unnamed(files: Mapping[str, bytes]) -> frozenset[str]:
    """Return the files of queues whose topic or channel is not in ``nsqd.dat``."""
    try:
        topics = names(files)
    except (KeyError, ValueError):  # there is none, or a power cut has torn it
        topics = {}
    return frozenset(name for name in files if not _is_known(_queue_of(name), topics))


def _queue_of(name: str) -> str:
    records, own = RECORDS.fullmatch(name), OWN.fullmatch(name)
    return records[1] if records else (own and (own[1] or own[2])) or ""


def _is_known(queue: str, topics: Mapping[str, set[str]]) -> bool:
    topic, _, channel = queue.partition(":")
    return not queue or (topic in topics and (not channel or channel in topics[topic]))


def check_no_orphans(files: Mapping[str, bytes], *, left: Collection[str] | None) -> None:
    """Check that each file is one of a queue whose topic and channel exist, and has records to read or to follow.

    A crash leaves temporary files, whose names are used again, and files ``left`` of topics that had no name yet.
    """
    topics = names(files)
    for name in files:
        if left is not None and name.endswith(".tmp"):
            continue
        records, queue = RECORDS.fullmatch(name), _queue_of(name)
        conclude(17, records is not None or OWN.fullmatch(name) is not None, f"{name} was left over")
        is_known = _is_known(queue, topics)
        is_left = not is_known and left is not None and name in left
        conclude(17, is_known or is_left, f"{name} is a file of no topic and no channel")
        if records is not None and not is_left:  # the positions of a queue that was not opened are older
            meta = META.fullmatch(files.get(f"{queue}.diskqueue.meta.dat", b""))
            conclude(17, meta is not None, f"{name} has no positions")
            assert meta is not None
            is_read = int(meta[2]) <= int(records[2]) <= int(meta[4])
            conclude(17, is_read, f"{name} is not between the positions {meta[0]!r}")


def check_deleted(files: Iterable[str], queue: str, *, has_temporary: bool) -> None:
    """Check that a queue that was deleted has no files but temporary ones of a crash, or of a sync that runs."""
    check_emptied(files, queue, has_temporary=has_temporary)
    conclude(17, f"{queue}.deferred.dat" not in files, f"the times of {queue} were not deleted")


def check_emptied(files: Iterable[str], queue: str, *, has_temporary: bool) -> None:
    """Check that a queue that was emptied has no files of messages; temporary ones are as for ``check_deleted``."""
    allowed = (".bad", ".tmp") if has_temporary else ".bad"
    left = [name for name in files if name.startswith(f"{queue}.diskqueue.") and not name.endswith(allowed)]
    conclude(17, not left, f"{left} were not removed")


def check_stopped(
    files: Mapping[str, bytes], kept: Messages | None, *, is_durable: bool, left: Collection[str] | None
) -> None:
    """Check the files of a broker that was stopped.

    Args:
        files: all of them.
        kept: the messages that they must have; None if that is not known.
        is_durable: a deferred message that was finished may be there while others wait before it.
        left: the files without a name that its last life has left; None if it was never killed.
    """
    lost = unnamed(files).intersection(left or ())
    found = read({name: data for name, data in files.items() if name not in lost})
    if kept is not None:
        found = found & kept if is_durable else found
        conclude(17, found == kept, f"the files have {found}, not {kept}")
    check_no_orphans(files, left=left)


def check_empty(files: Mapping[str, bytes]) -> None:
    """Check that the topics and channels of a broker that was stopped have no messages left."""
    topics = names(files)
    left = [each for each in read(files) if each[1].decode() in {"", *topics.get(each[0].decode(), ())}]
    conclude(9, not left, f"{left} are finished, and in the files")


def check_file_counts(files: Mapping[str, bytes]) -> None:
    """Check that queues without messages have few files; those without a name may be left by a kill."""
    known = files.keys() - unnamed(files)
    parts = [name.partition(".diskqueue.0") for name in known if name.endswith(".dat")]
    for name, count in Counter(name for name, separator, _ in parts if separator).items():
        if count > FILES_MAX:
            raise Broken(23, f"{name} has {count} files")
