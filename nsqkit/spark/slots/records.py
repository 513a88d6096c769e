"""The records of a slot log as bytes: a slot with rows, the seal, and the outcome of a slot's FINs.

        DATA:  kind 1 · version 1 · length of the head 4 · head, JSON · message ids, 16 bytes each · payload
        SEAL:  kind 1 · version 1

The head has the runs of rows from one topic of one nsqd, in the order of the payload's rows, so the ids of a slot are
read without its payload. The payload is opaque here: the bytes of an Arrow stream. Each record has a version, and bytes
that are no record are an error with their key, because rows that cannot be read are lost if they are skipped.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

import attrs

from nsqkit.errors import ProtocolError

VERSION: Final = 1
ID_SIZE: Final = 16
_DATA: Final = b"D"
_SEAL: Final = b"S"
_HEAD: Final = struct.Struct(">cBI")


class MessageKey(NamedTuple):
    """The name of a message: its id is unique in one topic of one nsqd only."""

    nsqd_address: str
    topic: str
    id: bytes


@attrs.frozen
class DataSlot:
    """The rows of one chunk.

    Attributes:
        keys: the message of each row, in the order of the payload's rows.
        payload: the rows, as bytes of the owner's format.
    """

    keys: Collection[MessageKey] = attrs.field(eq=tuple)
    payload: bytes | memoryview = attrs.field(repr=False, eq=bytes)


@attrs.frozen
class StoredKeys(Collection[MessageKey]):
    """The messages of a stored slot, decoded when they are iterated over; most readers of a log only count them.

    Attributes:
        runs: the nsqd, the topic and the number of messages of each run.
        ids: the ids of all messages, one after the other.
    """

    runs: tuple[tuple[str, str, int], ...]
    ids: bytes = attrs.field(repr=False)

    def __len__(self) -> int:
        return len(self.ids) // ID_SIZE

    def __iter__(self) -> Iterator[MessageKey]:
        start = 0
        for address, topic, count in self.runs:
            end = start + count * ID_SIZE
            ids = (self.ids[place : place + ID_SIZE] for place in range(start, end, ID_SIZE))
            yield from make_keys(address, topic, ids)
            start = end

    def __contains__(self, key: object) -> bool:
        return any(key == own for own in self)


def make_keys(address: str, topic: str, ids: Iterable[bytes]) -> Iterator[MessageKey]:
    """Return the key of each id of one topic of one nsqd."""
    return map(MessageKey._make, zip(repeat(address), repeat(topic), ids))


@attrs.frozen
class SealSlot:
    """The end of a log: no slot follows."""


@attrs.frozen
class FinRecord:
    """The outcome of the FINs of a slot.

    Attributes:
        failed: messages whose FIN failed. They belong to another owner, so their rows do not count.
        ambiguous: whether some FINs have no known outcome. Their rows count, and nsqd may deliver the messages again.
        row_count: the rows that count, so that the rows of a batch are counted without its slots.
    """

    failed: frozenset[MessageKey] = frozenset()
    ambiguous: bool = False
    row_count: int = 0


Slot: TypeAlias = DataSlot | SealSlot


def encode_data(keys: Sequence[MessageKey], payload: bytes | memoryview) -> bytes:
    """Return the bytes of a DATA slot.

    Args:
        keys: the message of each row, in order.
        payload: the rows.
    """
    runs = [[*source, len(list(run))] for source, run in groupby(keys, key=itemgetter(0, 1))]
    head = json.dumps({"runs": runs}).encode()
    ids = b"".join([key.id for key in keys])
    if len(ids) != ID_SIZE * len(keys):
        wrong = next(key.id for key in keys if len(key.id) != ID_SIZE)
        raise ProtocolError(f"message id {wrong!r} has {len(wrong)} bytes instead of {ID_SIZE}")
    return b"".join([_HEAD.pack(_DATA, VERSION, len(head)), head, ids, payload])


def encode_seal() -> bytes:
    """Return the bytes of a SEAL slot."""
    return _SEAL + bytes([VERSION])


def decode_slot(key: str, data: bytes | memoryview) -> Slot:
    """Return the slot that the bytes of ``key`` hold.

    Raises:
        ProtocolError: the bytes are no slot, or one of an unknown version.
    """
    view = memoryview(data)
    _check_version(key, view[1] if len(view) > 1 else None)
    if view == encode_seal():
        return SealSlot()
    if bytes(view[:1]) != _DATA or len(view) < _HEAD.size:
        raise ProtocolError(f"{key} is no slot: it begins with {bytes(view[:8])!r}")
    head_end = _HEAD.size + _HEAD.unpack_from(view)[2]
    try:
        runs = [(str(address), str(topic), int(count)) for address, topic, count in _json(view, head_end)["runs"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"{key} is no slot: its head is not readable: {error}") from error
    count_all = sum(count for _, _, count in runs)
    ids_end = head_end + ID_SIZE * count_all
    if len(view) < ids_end or any(count < 0 for _, _, count in runs):
        raise ProtocolError(f"{key} has {len(view)} bytes, fewer than the ids of its {count_all} rows need")
    ids = bytes(view[head_end:ids_end])
    return DataSlot(StoredKeys(tuple(runs), ids), view[ids_end:])


def encode_fin(fin: FinRecord) -> bytes:
    """Return the bytes of a FIN record."""
    failed = [[key.nsqd_address, key.topic, key.id.decode("latin-1")] for key in sorted(fin.failed)]
    return encode_fields({"failed": failed, "ambiguous": fin.ambiguous, "row_count": fin.row_count})


def decode_fin(key: str, data: bytes | memoryview) -> FinRecord:
    """Return the FIN record that the bytes of ``key`` hold.

    Raises:
        ProtocolError: the bytes are no FIN record, or one of an unknown version.
    """
    fields = decode_fields(key, data)
    try:
        failed = _keys(fields["failed"])
        ambiguous, row_count = fields["ambiguous"], fields["row_count"]
    except (ValueError, TypeError, KeyError) as error:
        raise ProtocolError(f"{key} is no FIN record: {error!r}") from error
    if not isinstance(ambiguous, bool):
        raise ProtocolError(f"{key} is no FIN record: ambiguous is {ambiguous!r} instead of true or false")
    if not isinstance(row_count, int):
        raise ProtocolError(f"{key} is no FIN record: row_count is {row_count!r} instead of an integer")
    return FinRecord(failed, ambiguous, row_count)


def encode_fields(fields: dict[str, object]) -> bytes:
    """Return a JSON object with the version, for the records of a WAL besides its slots."""
    return json.dumps({"version": VERSION, **fields}).encode()


def decode_fields(key: str, data: bytes | memoryview) -> dict[str, object]:
    """Return the fields of a JSON object with a version.

    Raises:
        ProtocolError: the bytes are no JSON object, or one of an unknown version.
    """
    try:
        fields = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{key} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"{key} is no JSON object: it is {fields!r:.80}")
    _check_version(key, fields.pop("version", None))
    return fields


def _json(view: memoryview, head_end: int) -> dict[str, list[tuple[str, str, int]]]:
    head: dict[str, list[tuple[str, str, int]]] = json.loads(bytes(view[_HEAD.size : head_end]))
    return head


def _keys(rows: object) -> frozenset[MessageKey]:
    if not isinstance(rows, Iterable):
        raise TypeError(f"{rows!r} is no list")
    return frozenset(MessageKey(str(address), str(topic), str(id_).encode("latin-1")) for address, topic, id_ in rows)


def _check_version(key: str, version: object) -> None:
    if version != VERSION:
        raise ProtocolError(f"{key} has version {version!r}; this nsqkit reads version {VERSION}")
