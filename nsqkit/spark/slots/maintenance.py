"""The life of the WALs at one location: creation, adoption, the check against a checkpoint, and removal of batches.

nsqd has dropped the messages of a WAL. If a query loses its checkpoint, the rows of its last batches may exist in the
WAL only, so a new query at the same location does not ignore them unless its options say so. A batch whose slots are
*ambiguous* stays until ``dedup_horizon`` has passed since its end, because nsqd may still deliver its messages.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs

from nsqkit.errors import OptionError, ProtocolError
from nsqkit.spark.slots.records import decode_fields, encode_fields
from nsqkit.spark.slots.store import SlotStore
from nsqkit.spark.slots.wal import Wal

OrphanPolicy: TypeAlias = Literal["fail", "adopt", "ignore"]

_INFO: Final = "wal.json"


@attrs.frozen(kw_only=True)
class WalInfo:
    """The record of a WAL.

    Attributes:
        topics: the topics of its messages, with commas between them.
        channel: their channel.
        adopted: older WALs whose rows are rows of its first batch.
    """

    topics: str
    channel: str
    adopted: tuple[str, ...] = ()


def create_wal(store: SlotStore, wal_id: str, info: WalInfo, on_orphaned: OrphanPolicy) -> Wal:
    """Return a new WAL for a query without a checkpoint; one that this query created before is returned as it is.

    Args:
        store: the location.
        wal_id: a new name.
        info: its topics and channel; ``adopted`` is ignored.
        on_orphaned: "fail" refuses a location that has rows of the same topics and channel, "adopt" makes them rows of
            the new WAL, and "ignore" leaves them where they are.

    Raises:
        OptionError: there are orphaned WALs, and ``on_orphaned`` is "fail".
    """
    if _read_info(store, wal_id) is not None:
        return open_wal(store, wal_id, 0, info)
    orphans = () if on_orphaned == "ignore" else orphaned_wals(store, info)
    if orphans and on_orphaned == "fail":
        raise OptionError(
            f"walLocation has rows of topic {info.topics!r} and channel {info.channel!r} in WAL {', '.join(orphans)}, "
            "but the query has no checkpoint: nsqd has dropped their messages, and a sink may lack them. Restore the "
            "checkpoint, set another walLocation, or set onOrphanedWal to adopt (the first batch has these rows) or "
            "ignore (no batch has them)"
        )
    store.put_if_absent(
        f"{wal_id}/{_INFO}",
        encode_fields({"topics": info.topics, "channel": info.channel, "adopted": list(orphans)}),
    )
    return open_wal(store, wal_id, 0, info)


def open_wal(store: SlotStore, wal_id: str, next_batch: int, info: WalInfo) -> Wal:
    """Return the WAL that a checkpoint names.

    Args:
        store: the location.
        wal_id: its name.
        next_batch: the first batch that the checkpoint does not have.
        info: the topics and the channel of the query; ``adopted`` is ignored.

    Raises:
        OptionError: the checkpoint and the WAL do not belong together.
    """
    found = _read_info(store, wal_id)
    if found is None:
        raise OptionError(
            f"the checkpoint names WAL {wal_id}, which walLocation does not have: set walLocation to the one that the "
            "query had, or start with a new checkpoint"
        )
    if (found.topics, found.channel) != (info.topics, info.channel):
        raise OptionError(
            f"WAL {wal_id} of the checkpoint has topic {found.topics!r} and channel {found.channel!r}, but the query "
            f"has topic {info.topics!r} and channel {info.channel!r}: a checkpoint is for one subscription"
        )
    wal = Wal(store, wal_id, found.adopted)
    planned = planned_batches(wal)
    if planned and planned[-1] > next_batch and next_batch not in planned:
        raise OptionError(
            f"the checkpoint of WAL {wal_id} ends before batch {next_batch}, which was removed; the WAL has batches "
            f"{planned[0]} to {planned[-1]}: the checkpoint is older than walRetainBatches allows"
        )
    return wal


def orphaned_wals(store: SlotStore, info: WalInfo) -> tuple[str, ...]:
    """Return the WALs of the same subscription that have rows; one that was adopted may be unread."""
    keys = store.list("")
    infos = {key.split("/")[0]: _read_info(store, key.split("/")[0]) for key in keys if key.endswith(f"/{_INFO}")}
    with_rows = {key.split("/")[0] for key in keys if key.endswith(".slot")}
    same = [
        wal_id
        for wal_id, found in infos.items()
        if found and (found.topics, found.channel) == (info.topics, info.channel)
    ]
    return tuple(sorted(wal_id for wal_id in same if wal_id in with_rows))


def open_wals(store: SlotStore) -> list[Wal]:
    """Return all WALs of a location."""
    wal_ids = [key.split("/")[0] for key in store.list("") if key.endswith(f"/{_INFO}")]
    infos = {wal_id: _read_info(store, wal_id) for wal_id in wal_ids}
    return [Wal(store, wal_id, info.adopted) for wal_id, info in infos.items() if info]


def planned_batches(wal: Wal) -> list[int]:
    """Return the batches that have a plan, in order."""
    return _numbers(wal, "plan/", ".json")


def adopted_partitions(wal: Wal) -> list[tuple[str, int, int]]:
    """Return WAL, batch and partition of each log of the adopted WALs that has slots; their replay seals them."""
    found = set()
    for wal_id in wal.adopted:
        for key in wal.store.list(f"{wal_id}/"):
            parts = key.split("/")
            if key.endswith(".slot"):
                found.add((wal_id, int(parts[1]), int(parts[2])))
    return sorted(found)


def remove_batches(wal: Wal, next_batch: int, retain: int, dedup_horizon_ns: int, now_ns: int) -> list[int]:
    """Remove old batches, and return their numbers.

    Args:
        wal: the WAL.
        next_batch: the first batch that the checkpoint does not have.
        retain: batches before it that stay.
        dedup_horizon_ns: how long nsqd may deliver messages again whose FIN has no known outcome.
        now_ns: ns since the Unix epoch.
    """
    removed = []
    for batch in planned_batches(wal):
        if batch >= next_batch - retain:
            break
        end_ns = _ended_ns(wal, batch, now_ns)
        if end_ns + dedup_horizon_ns <= now_ns or not _is_ambiguous(wal, batch):
            wal.store.put_if_absent(wal.removed_key(batch), encode_fields({"created_ns": end_ns}))
            wal.store.delete(wal.batch_prefix(batch))
            # The plan is the last to go, so that an interrupted removal is found and repeated.
            wal.store.delete(wal.plan_key(batch))
            wal.index.remove(wal.batch_prefix(batch))
            removed.append(batch)
    _remove_marks(wal, removed, dedup_horizon_ns, now_ns)
    return removed


def _remove_marks(wal: Wal, removed: list[int], dedup_horizon_ns: int, now_ns: int) -> None:
    """Remove marks so old that no owner of such a batch can run, and what one may have stored meanwhile."""
    for batch in _numbers(wal, "removed/", ""):
        key = wal.removed_key(batch)
        data = wal.store.get(key) if batch not in removed else None
        if data is not None and _int_field(key, data, "created_ns") + 2 * dedup_horizon_ns <= now_ns:
            wal.store.delete(wal.batch_prefix(batch))
            wal.store.delete(key)


def _is_ambiguous(wal: Wal, batch: int) -> bool:
    return any(seal.counts.ambiguous_count for seal in wal.seals(batch))


def _ended_ns(wal: Wal, batch: int, now_ns: int) -> int:
    """Return a time when a batch had ended, ns since the Unix epoch.

    It may have run long after its own plan, if the query was down. The next batch is planned after its end; if that
    plan is removed, the mark in its place has a later time.
    """
    if planned_ns := created_ns(wal, batch + 1):
        return planned_ns
    key = wal.removed_key(batch + 1)
    data = wal.store.get(key)
    return now_ns if data is None else _int_field(key, data, "created_ns")


def created_ns(wal: Wal, batch: int) -> int:
    """Return when a batch was planned, ns since the Unix epoch; 0 if it has no plan."""
    key = wal.plan_key(batch)
    data = wal.store.get(key)
    return 0 if data is None else _int_field(key, data, "created_ns")


def _numbers(wal: Wal, folder: str, suffix: str) -> list[int]:
    names = (key.rpartition("/")[2] for key in wal.store.list(f"{wal.wal_id}/{folder}"))
    return sorted(int(name.removesuffix(suffix)) for name in names)


def _read_info(store: SlotStore, wal_id: str) -> WalInfo | None:
    key = f"{wal_id}/{_INFO}"
    data = store.get(key)
    if data is None:
        return None
    fields = decode_fields(key, data)
    adopted = fields.get("adopted")
    if not isinstance(adopted, list):
        raise ProtocolError(f"{key} is no record of a WAL: adopted is {adopted!r} instead of a list")
    return WalInfo(
        topics=str(fields.get("topics")), channel=str(fields.get("channel")), adopted=tuple(map(str, adopted))
    )


def _int_field(key: str, data: bytes | memoryview, name: str) -> int:
    value = decode_fields(key, data).get(name)
    if not isinstance(value, int):
        raise ProtocolError(f"{key} has {name} {value!r} instead of an integer")
    return value
