"""With ``--durability=fsync`` nothing that was acknowledged is lost, whenever the power is cut: 1,000 worlds.

A world is made from its number alone, on one disk in memory; ``python -c "from tests.simulation.power import World;
World(SEED, print).run(LIVES, STEPS)"`` tells what happens in it.
"""

from __future__ import annotations

import pytest

from nsqkit.broker.core.durable_queue import DurableQueue
from nsqkit.broker.core.storage import DurableStorage
from tests.broker.core.disks import MemoryDirectory
from tests.simulation.power import World

WORLDS = 1_000
LIVES = 3
STEPS = 40


def live(seeds: range) -> None:
    for seed in seeds:
        try:
            World(seed).run(LIVES, STEPS)
        except Exception as error:
            error.add_note(f"World({seed}, print).run({LIVES}, {STEPS})")
            raise


@pytest.mark.parametrize("first", range(0, WORLDS, 50))
def test_nothing_that_was_acknowledged_is_lost(first):
    live(range(first, first + 50))


def test_a_seed_is_a_world():
    traces: list[list[str]] = []
    for _ in range(2):
        traces.append([])
        World(7, traces[-1].append).run(LIVES, STEPS)
    assert traces[0] == traces[1]
    assert len(traces[0]) > STEPS


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (DurableQueue, "_to_be_read", lambda self: (self._depth, self._read)),
        (DurableQueue, "sync_data", lambda self: None),
        (DurableQueue, "data_to_sync", lambda self: []),
        (DurableQueue, "settle", lambda self: setattr(self, "_settled", (self._taken, self._read))),
        (DurableStorage, "files_to_sync", lambda self: []),
        (MemoryDirectory, "sync", lambda self: None),
    ],
)
def test_a_broken_engine_is_noticed(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        live(range(100))
