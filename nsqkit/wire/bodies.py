"""The bodies of commands, read by a broker in nsqd's order of reading and checking.

An error is raised at the same byte and with the same text as nsqd's (nsqd/protocol_v2.go), however the stream was
divided into buffers. A *reader* is a generator: it yields the number of bytes that it needs next, with the error to
answer if the stream ends before them, is sent those bytes, and returns the bodies. The reader of a batch is sent all
bytes that have come, because batches come in parts (go-nsq writes 16 KiB at a time) and one send for each size and body
takes several times as long. ``split_batch`` is the fast path for an MPUB that has come whole.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, Protocol, TypeAlias

from nsqkit.errors import BadBody, BadMessage, BrokerError

_INT32 = Struct(">i")
_BATCH_OVERHEAD = 4  # a message in a batch is its size and its body


class Limits(Protocol):
    """The limits of bodies."""

    max_msg_size: int
    max_body_size: int


class Need(NamedTuple):
    """The bytes that a reader needs next.

    Attributes:
        size: their number.
        cut_off: the error to answer if the stream ends before them; None for none.
        or_more: the reader accepts all bytes that have come, and returns those after the body.
    """

    size: int
    cut_off: BrokerError | None = None
    or_more: bool = False


class Read(NamedTuple):
    """The result of a reader: the bodies of the command, and the bytes after them that it was sent."""

    bodies: Sequence[bytes]
    rest: bytes = b""


Reader: TypeAlias = Generator[Need, bytes, Read]


def parse_int32(data: bytes) -> int:
    number: int = _INT32.unpack(data)[0]
    return number


def batch_count_max(max_body_size: int) -> int:
    """Return the highest count that an MPUB may announce: each message has a size and at least one byte."""
    return (max_body_size - 4) // (_BATCH_OVERHEAD + 1)


def read_document(name: str, limits: Limits) -> Reader:
    """Read the body of IDENTIFY or AUTH."""
    size = parse_int32((yield Need(4, BadBody(f"{name} failed to read body size"))))
    if size > limits.max_body_size:
        raise BadBody(f"{name} body too big {size} > {limits.max_body_size}")
    if size <= 0:
        raise BadBody(f"{name} invalid body size {size}")
    return Read(((yield Need(size, BadBody(f"{name} failed to read body"))),))


def read_message(name: str, limits: Limits) -> Reader:
    """Read the body of PUB or DPUB."""
    size = parse_int32((yield Need(4, BadMessage(f"{name} failed to read message body size"))))
    if size <= 0:
        raise BadMessage(f"{name} invalid message body size {size}")
    if size > limits.max_msg_size:
        raise BadMessage(f"{name} message too big {size} > {limits.max_msg_size}")
    return Read(((yield Need(size, BadMessage(f"{name} failed to read message body"))),))


def read_batch(name: str, limits: Limits) -> Reader:
    """Read the body of MPUB. The messages' own sizes count; the size of the body is only compared with its limit.

    nsqd reads any number of bytes if each size is valid; here the messages together must not exceed ``max_body_size``.
    """
    size = parse_int32((yield Need(4, BadBody(f"{name} failed to read body size"))))
    if size <= 0:
        raise BadBody(f"{name} invalid body size {size}")
    if size > limits.max_body_size:
        raise BadBody(f"{name} body too big {size} > {limits.max_body_size}")
    count = parse_int32((yield Need(4, BadBody(f"{name} failed to read message count"))))
    if not 0 < count <= batch_count_max(limits.max_body_size):
        raise BadBody(f"{name} invalid message count {count}")
    bodies: list[bytes] = []
    total = 4
    data = b""
    position = 0
    while len(bodies) < count:
        start = position + _BATCH_OVERHEAD
        if start <= len(data):
            size = _INT32.unpack_from(data, position)[0]
            if size <= 0:
                raise BadMessage(f"{name} invalid message({len(bodies)}) body size {size}")
            if size > limits.max_msg_size:
                raise BadMessage(f"{name} message too big {size} > {limits.max_msg_size}")
            end = start + size
            if total + end - position > limits.max_body_size:
                raise BadBody(f"{name} body too big {total + end - position} > {limits.max_body_size}")
            if end <= len(data):
                bodies.append(data[start:end])
                total += end - position
                position = end
                continue
            missing, what = end - len(data), "message body"
        else:
            missing, what = start - len(data), f"message({len(bodies)}) body size"
        cut_off = BadMessage(f"{name} failed to read {what}")
        data = data[position:] + (yield Need(missing, cut_off, or_more=True))
        run = _equal_bodies(data, 0, count - len(bodies), limits.max_msg_size, limits.max_body_size - total)
        bodies += run
        position = len(run) * (_BATCH_OVERHEAD + len(run[0])) if run else 0
        total += position
    return Read(bodies, data[position:])


READERS: Final[dict[bytes, Callable[[str, Limits], Reader]]] = {
    b"IDENTIFY": read_document,
    b"AUTH": read_document,
    b"PUB": read_message,
    b"DPUB": read_message,
    b"MPUB": read_batch,
}
"""The commands that have a body."""


def _equal_bodies(data: bytes, position: int, count_max: int, size_max: int, space: int) -> Sequence[bytes]:
    """Return the bodies from ``position`` on if all have one size, unpacked at once; else nothing.

    At most ``count_max`` bodies, which have ``space`` bytes with their sizes.
    """
    if len(data) - position < _BATCH_OVERHEAD:
        return ()
    size: int = _INT32.unpack_from(data, position)[0]
    if not 0 < size <= size_max:
        return ()
    each = _BATCH_OVERHEAD + size
    count = min(count_max, min(space, len(data) - position) // each, 1024)
    # If the sizes differ, the bytes at the place of the last size are seldom equal by chance.
    if count < 1 or _INT32.unpack_from(data, position + (count - 1) * each)[0] != size:
        return ()
    fields = _equal_sizes(count, size).unpack_from(data, position)
    return fields[1::2] if fields[0::2].count(size) == count else ()


@lru_cache(maxsize=256)
def _equal_sizes(count: int, size: int) -> Struct:
    """Return the layout of an MPUB body with ``count`` messages of ``size`` bytes each."""
    return Struct(">" + f"i{size}s" * count)


def split_batch(data: bytes, position: int, end: int, count: int, size_max: int) -> Sequence[bytes] | None:
    """Return the ``count`` bodies that fill ``data[position:end]`` exactly, or None if they do not."""
    run = _equal_bodies(data, position, count, size_max, end - position)
    if run and len(run) == count:
        return run if end - position == count * (_BATCH_OVERHEAD + len(run[0])) else None
    bodies: list[bytes] = []
    append = bodies.append
    unpack = _INT32.unpack_from
    for _ in range(count):
        start = position + _BATCH_OVERHEAD
        if start > end:
            return None
        size = unpack(data, position)[0]
        position = start + size
        if not 0 < size <= size_max:
            return None
        append(data[start:position])
    return bodies if position == end else None
