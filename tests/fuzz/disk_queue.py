"""The files of a queue on disk. The first round is the file of positions; the action of another one is its number.

In odd modes the queue is that of ``--durability=fsync``. Any files can be opened and read. Messages that are put
afterwards are in the files when these are opened again, and no file stays open.
"""

from __future__ import annotations

from typing import Final

from nsqkit.broker.core.disk.disk_queue import DiskQueue
from nsqkit.broker.core.disk.durable_queue import DurableQueue
from nsqkit.broker.core.disk.positions import Position, file_name, meta_name, to_meta
from nsqkit.broker.core.disk.records import to_records
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.wire.messages import encode_message, id_of
from tests.broker.core.disk.disks import MemoryFileStore, new_state
from tests.fuzz.broker_session import NOW_NS
from tests.fuzz.harness import MARK, pack, unpack

OPTIONS: Final = BrokerOptions(max_msg_size=200, max_bytes_per_file=300, sync_every=3, node_id=1)
NEW: Final = [encode_message(NOW_NS, 1, b"new message %4d" % number, b"body") for number in range(20)]
_RECORDS: Final = [encode_message(NOW_NS, 1, b"%016x" % number, b"body") for number in range(6)]
_FILE: Final = to_records(_RECORDS)
_SIZE: Final = len(_FILE)


def _files(depth: int, read: Position, write: Position, *contents: bytes, mode: int) -> bytes:
    rounds = [bytes((4 * (read.file + number),)) + content for number, content in enumerate(contents)]
    return MARK.join([pack(to_meta(depth, read, write), mode=mode), *rounds])


SEEDS: Final = [
    seed
    for mode in (0, 1)
    for seed in (
        _files(12, Position(0), Position(1, _SIZE), _FILE, _FILE, mode=mode),
        _files(1, Position(3, _SIZE // 2), Position(3, _SIZE), _FILE, mode=mode),
        _files(-7, Position(2), Position(5, 10), _FILE, _FILE[:-3], b"\xff" * 50, mode=mode),
        _files(3, Position(9, 9), Position(1, 1), _FILE, mode=mode),
        _files(3, Position(10**12), Position(10**14, 7), mode=mode),
        pack(b"damaged", b"\x00" + _FILE, mode=mode),
    )
]
WORDS: Final = [to_meta(1, Position(0), Position(0, _SIZE)), _FILE[:4], _FILE[: _SIZE // 6], b"4611686018427387903"]
CALLS_PER_UNIT: Final = 60


def run(data: bytes) -> int:
    _, mode, rounds = unpack(data)
    files = {file_name("t", each.action): each.content for each in rounds[1:]}
    store = MemoryFileStore({meta_name("t"): rounds[0].content, **files})
    size = sum(map(len, files.values()))
    kind = DurableQueue if mode & 1 else DiskQueue
    queue = kind(store, "t", OPTIONS, new_state())
    found = _take(queue, size)
    queue.put(NEW)
    queue.sync()
    if isinstance(queue, DurableQueue):
        queue.finish(map(id_of, found))
    taken = queue.take(5)
    assert taken == NEW[:5]
    if isinstance(queue, DurableQueue):
        queue.finish(map(id_of, taken))
    assert len(queue) == len(NEW) - 5
    queue.close()
    assert store.open_count == 0
    again = kind(store, "t", OPTIONS, new_state())
    assert len(again) >= len(NEW) - 5
    assert _take(again, size)[: len(NEW) - 5] == NEW[5:]  # a file with a higher number may follow
    again.close()
    assert store.open_count == 0
    return len(data) + size


def _take(queue: DiskQueue, size: int) -> list[bytes]:
    frames: list[bytes] = []
    while more := queue.take(7):
        frames += more
        assert sum(map(len, frames)) <= 4 * (size + sum(map(len, NEW))), "more messages than the files have bytes"
    assert not len(queue)
    return frames
