"""Worlds, each from a seed: broker and clients against each other's misfortune.

A world that fails is told again by ``python -m tests.simulation --seed N --trace``.
"""

from __future__ import annotations

import pytest

from tests.simulation.world import World

WORLDS = 200
STEPS = 150


@pytest.mark.parametrize("first", range(0, WORLDS, 10))
def test_worlds(first):
    for seed in range(first, first + 10):
        try:
            World(seed).run(STEPS)
        except Exception as error:
            error.add_note(f"python -m tests.simulation --seed {seed} --trace")
            raise


def test_a_seed_is_a_world():
    traces: list[list[str]] = []
    for _ in range(2):
        traces.append([])
        World(7, trace=traces[-1].append).run(STEPS)
    assert traces[0] == traces[1]
    assert len(traces[0]) > STEPS
