"""Worlds, each from a seed: real brokers and clients with faults of the network and of handlers.

``python -m tests.simulation --seed N --trace`` repeats a world that failed.
"""

from __future__ import annotations

import pytest

from nsqkit.broker.core.timers import Timers
from nsqkit.broker.core.topics import channel
from nsqkit.broker.core.topics.channel import Channel
from nsqkit.broker.core.topics.subscription import InFlight, Subscription
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


@pytest.mark.parametrize("seed", [50158, 51203, 61958])
def test_test_message_that_is_lost_with_its_connection_is_not_awaited(seed):
    World(seed).run(STEPS)


def test_world_is_determined_by_its_seed():
    traces: list[list[str]] = []
    for _ in range(2):
        traces.append([])
        World(7, trace=traces[-1].append).run(STEPS)
    assert traces[0] == traces[1]
    assert len(traces[0]) > STEPS


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Channel, "time_out", lambda *args: False),
        (Channel, "unpause", lambda self: setattr(self, "paused", False)),
        (channel, "for_redelivery", lambda frame: frame),
        (InFlight, "remove_all", lambda self, ids: []),
        (InFlight, "touch", lambda self, message_id, now_ns, timeout_ns, max_timeout_ns: now_ns),
        (Subscription, "capacity", property(lambda self: 0 if self.output is None else self.rdy_count)),
        (Timers, "schedule", lambda self, owner, due_ns: None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_engine_is_noticed(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        for seed in range(30):
            World(seed).run(STEPS)
