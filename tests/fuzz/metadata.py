"""The other files of a data path: names, times of deferred messages, the mark of ids. The mode selects one.

A file that is read can be written, and is then read as the same.
"""

from __future__ import annotations

from random import Random
from typing import Final

from nsqkit.broker.core import metadata
from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.deferred_times import DeferredTimes
from nsqkit.broker.core.disk.guid import TICK_LAST
from nsqkit.broker.core.disk.id_mark import FILE_NAME, read_used_tick, write_mark
from nsqkit.errors import OptionError
from tests.broker.core.disk.disks import MemoryFileStore
from tests.fuzz.broker_session import NOW_NS, OPTIONS
from tests.fuzz.harness import pack

_NAMES: Final = b'{"topics":[{"name":"t","paused":true,"channels":[{"name":"c","paused":true},{"name":"d"}]},'


def _mark(tick: int) -> bytes:
    store = MemoryFileStore()
    write_mark(store, tick)
    return store.files[FILE_NAME]


SEEDS: Final = [
    pack(_NAMES + b'{"name":"u#ephemeral","channels":null}],"version":"1.3.0"}'),
    pack(b'{"topics":[{"name":"\\ud800","channels":[{}]},{"name":"t"},{"name":"t","channels":[null]}]}'),
    *(pack(document) for document in (b"null", b"[" * 5000, b'{"topics":7}', b'{"topics":[[]]}')),
    pack(b"%016x %d\n%016x %d\n" % (1, NOW_NS, 2, 10**18), mode=1),
    pack(_mark(123456), mode=2),
]
WORDS: Final = [
    b'"topics":[',
    b'"channels":[',
    b'"name":"',
    b'"paused":true',
    b"#ephemeral",
    b"null",
    b"%016x %d\n" % (1, 1),
]
CALLS_PER_UNIT: Final = 60


def _read_names(document: bytes) -> None:
    broker, again = (Broker(OPTIONS, Random(0)) for _ in range(2))
    try:
        metadata.restore(broker, document, NOW_NS)
    except OptionError:
        return
    written = metadata.document(broker)
    assert metadata.restore(again, written, NOW_NS) == []
    assert metadata.document(again) == written


def _read_times(data: bytes) -> None:
    store = MemoryFileStore({"t.deferred.dat": data})
    times = DeferredTimes(store, "t")
    times.write({})
    assert DeferredTimes(store, "t").by_id == times.by_id


def _read_mark(data: bytes) -> None:
    store = MemoryFileStore({FILE_NAME: data})
    tick = read_used_tick(store, [])
    assert -1 <= tick <= TICK_LAST
    write_mark(store, max(tick, 0))
    assert read_used_tick(store, []) == max(tick, 0)


def run(data: bytes) -> int:
    mode, content = data[3:4], data[5:]
    (_read_names, _read_times, _read_mark)[mode[0] % 3 if mode else 0](content)
    return len(content)
