"""The offsets of a stream, as checkpoints have them in JSON: the batches before ``n`` are read.

With ``ackMode=wal`` an offset is ``{"wal": name, "n": number}``, with other modes ``{"ackMode": mode, "n": number}``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from nsqkit.errors import OptionError

Offset: TypeAlias = dict[str, Any]


def wal_offset(wal_id: str, next_batch: int) -> Offset:
    """Return the offset of a WAL."""
    return {"wal": wal_id, "n": next_batch}


def read_wal_offset(offset: Offset) -> tuple[str, int]:
    """Return the name of the WAL and the next batch.

    Raises:
        OptionError: the offset is of another mode, or of another source.
    """
    match offset:
        case {"wal": str(wal_id), "n": int(next_batch)}:
            return wal_id, next_batch
    raise _other_query("wal", offset)


def mode_offset(ack_mode: str, next_batch: int) -> Offset:
    """Return the offset of a mode without a WAL."""
    return {"ackMode": ack_mode, "n": next_batch}


def read_mode_offset(ack_mode: str, offset: Offset) -> int:
    """Return the next batch of a mode without a WAL.

    Raises:
        OptionError: the offset is of another mode, or of another source.
    """
    match offset:
        case {"ackMode": found, "n": int(next_batch)} if found == ack_mode:
            return next_batch
    raise _other_query(ack_mode, offset)


def _other_query(ack_mode: str, offset: Offset) -> OptionError:
    mode = "wal" if "wal" in offset else offset.get("ackMode")
    source = "another source" if mode is None else f"a query with ackMode {mode!r}"
    return OptionError(
        f"ackMode is {ack_mode!r}, but the checkpoint is of {source}, its offset is {offset!r}: set the options of "
        "that query, or start with a new checkpoint"
    )
