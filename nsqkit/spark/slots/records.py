"""The records of a slot log as bytes: a slot with rows, and the seal.

        DATA:  kind 1 · version 1 · length of the head 4 · head, JSON · message ids, 16 bytes each · payload
        SEAL:  kind 1 · version 1 · length of the head 4 · head, JSON

Each has the outcome of the FINs of the slot before it. The head of a DATA slot has the runs of rows from one topic of
one nsqd, in the order of the payload's rows, so the ids of a slot are read without its payload. The payload is opaque
here: the bytes of an Arrow stream. Each record has a version, and bytes that are no record are an error with their key,
because rows that cannot be read are lost if they are skipped.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Iterator
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
class FinOutcome:
    """The outcome of the FINs of a slot.

    Attributes:
        failed: messages whose FIN failed. They belong to another owner, so their rows do not count.
        ambiguous: whether some FINs have no known outcome. Their rows count, and nsqd may deliver the messages again.
    """

    failed: frozenset[MessageKey] = frozenset()
    ambiguous: bool = False


@attrs.frozen
class RowCounts:
    """The rows of slots.

    Attributes:
        row_count: rows that count.
        failed_count: rows left out because their FIN failed: nsqd had given the messages to another consumer.
        ambiguous_count: slots whose FINs have no known outcome.
    """

    row_count: int = 0
    failed_count: int = 0
    ambiguous_count: int = 0

    def with_slot(self, size: int, outcome: FinOutcome) -> RowCounts:
        """Return the counts with one more slot of ``size`` rows."""
        failed_count = len(outcome.failed)
        return self + RowCounts(size - failed_count, failed_count, int(outcome.ambiguous))

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            self.row_count + other.row_count,
            self.failed_count + other.failed_count,
            self.ambiguous_count + other.ambiguous_count,
        )


@attrs.frozen
class DataSlot:
    """The rows of one chunk.

    Attributes:
        keys: the message of each row, in the order of the payload's rows.
        payload: the rows, as bytes of the owner's format.
        outcome: of the slot before this one; None in the first slot.
    """

    keys: Collection[MessageKey] = attrs.field(eq=tuple)
    payload: bytes | memoryview = attrs.field(repr=False, eq=bytes)
    outcome: FinOutcome | None = None


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
    """The end of a log: no slot follows.

    Attributes:
        outcome: of the slot before this one; None in a log without rows.
        counts: of all slots of the log, so that the rows of a batch are counted without them.
    """

    outcome: FinOutcome | None = None
    counts: RowCounts = RowCounts()


Slot: TypeAlias = DataSlot | SealSlot


def encode_slot(slot: Slot) -> tuple[bytes, bytes | memoryview]:
    """Return the bytes of a slot in two parts, of which the second one is the payload itself."""
    if isinstance(slot, SealSlot):
        return _encode_head(_SEAL, slot.outcome, {"counts": attrs.astuple(slot.counts)}), b""
    runs = [[*source, len(list(run))] for source, run in groupby(slot.keys, key=itemgetter(0, 1))]
    ids = b"".join([key.id for key in slot.keys])
    if len(ids) != ID_SIZE * len(slot.keys):
        wrong = next(key.id for key in slot.keys if len(key.id) != ID_SIZE)
        raise ProtocolError(f"message id {wrong!r} has {len(wrong)} bytes instead of {ID_SIZE}")
    return _encode_head(_DATA, slot.outcome, {"runs": runs}) + ids, slot.payload


def decode_slot(key: str, data: bytes | memoryview) -> Slot:
    """Return the slot that the bytes of ``key`` hold.

    Raises:
        ProtocolError: the bytes are no slot, or one of an unknown version.
    """
    view = memoryview(data)
    _check_version(key, view[1] if len(view) > 1 else None)
    kind = bytes(view[:1])
    if kind not in (_DATA, _SEAL) or len(view) < _HEAD.size:
        raise ProtocolError(f"{key} is no slot: it begins with {bytes(view[:8])!r}")
    head_end = _HEAD.size + _HEAD.unpack_from(view)[2]
    try:
        head = json.loads(bytes(view[_HEAD.size : head_end]))
        outcome = None if head["outcome"] is None else _decode_outcome(*head["outcome"])
        if kind == _SEAL:
            return SealSlot(outcome, RowCounts(*map(int, head["counts"])))
        runs = [(str(address), str(topic), int(count)) for address, topic, count in head["runs"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"{key} is no slot: its head is not readable: {error!r}") from error
    count_all = sum(count for _, _, count in runs)
    ids_end = head_end + ID_SIZE * count_all
    if len(view) < ids_end or any(count < 0 for _, _, count in runs):
        raise ProtocolError(f"{key} has {len(view)} bytes, fewer than the ids of its {count_all} rows need")
    ids = bytes(view[head_end:ids_end])
    return DataSlot(StoredKeys(tuple(runs), ids), view[ids_end:], outcome)


def _encode_head(kind: bytes, outcome: FinOutcome | None, fields: dict[str, object]) -> bytes:
    failed = [] if outcome is None else [(*key[:2], key.id.decode("latin-1")) for key in sorted(outcome.failed)]
    found = None if outcome is None else (failed, outcome.ambiguous)
    head = json.dumps({"outcome": found, **fields}).encode()
    return _HEAD.pack(kind, VERSION, len(head)) + head


def _decode_outcome(failed: Iterable[tuple[str, str, str]], ambiguous: object) -> FinOutcome:
    if not isinstance(ambiguous, bool):
        raise TypeError(f"ambiguous is {ambiguous!r} instead of true or false")
    keys = (MessageKey(str(address), str(topic), str(id_).encode("latin-1")) for address, topic, id_ in failed)
    return FinOutcome(frozenset(keys), ambiguous)


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


def _check_version(key: str, version: object) -> None:
    if version != VERSION:
        raise ProtocolError(f"{key} has version {version!r}; this nsqkit reads version {VERSION}")
