"""Messages on disk survive power cuts: 1,000 worlds with ``--durability=fsync``, some without.

``promises`` has the checks. A world is made from its number alone. The note of one that fails has the call that runs it
again and prints what happens.
"""

from __future__ import annotations

import gc

import pytest

from nsqkit.broker.core.disk.durable_queue import DurableQueue
from nsqkit.broker.core.disk.recovery import Recovery
from nsqkit.broker.core.disk.sync import SyncBatch, SyncPlan
from tests.broker.core.disk.disks import MemoryFileStore
from tests.simulation.power import World
from tests.simulation.runner import without_collection

WORLDS = 1_000
RUNS = 3
STEPS = 40


ORDINARY_WORLDS = 200


def live(seeds: range, durability: str = "fsync") -> None:
    with without_collection():
        for seed in seeds:
            try:
                World(seed, durability=durability).run(RUNS, STEPS)
            except Exception as error:
                error.add_note(f"World({seed}, print, durability={durability!r}).run({RUNS}, {STEPS})")
                raise
            gc.collect()


@pytest.mark.parametrize("first", range(0, WORLDS, 50))
def test_acknowledged_messages_are_not_lost(first):
    live(range(first, first + 50))


@pytest.mark.parametrize("first", range(0, ORDINARY_WORLDS, 50))
def test_synced_messages_are_not_lost_in_the_ordinary_mode(first):
    live(range(first, first + 50), "nsqd")


def test_seed_determines_the_world():
    traces: list[list[str]] = []
    for _ in range(2):
        traces.append([])
        World(7, traces[-1].append).run(RUNS, STEPS)
    assert traces[0] == traces[1]
    assert len(traces[0]) > STEPS


@pytest.mark.parametrize(
    ("owner", "name", "broken", "durability"),
    [
        (DurableQueue, "_progress", lambda self: (self._taken, self._read), "fsync"),
        (SyncPlan, "sync_data", lambda self: None, "fsync"),
        (SyncBatch, "sync_data", lambda self: None, "fsync"),
        (MemoryFileStore, "sync", lambda self: None, "fsync"),
        (MemoryFileStore, "sync", lambda self: None, "nsqd"),
        (SyncPlan, "sync_data", lambda self: None, "nsqd"),
        (Recovery, "_find_unrecorded", lambda self: None, "nsqd"),
    ],
)
def test_simulation_detects_a_broken_engine(monkeypatch, owner, name, broken, durability):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        live(range(100), durability)
