"""Worlds, each from a seed: real brokers and clients, with faults of the network, disks, clocks and processes.

``python -m tests.simulation SEED --trace`` repeats a world that failed, and ``--shrink`` makes a small plan of it.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter

import pytest

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.timers import Timers
from nsqkit.broker.core.topics import channel
from nsqkit.broker.core.topics.channel import Channel
from nsqkit.broker.core.topics.subscription import InFlight, Subscription
from nsqkit.spark.slots.records import FinOutcome, MessageKey
from tests.simulation.broken import Broken
from tests.simulation.draw import draw
from tests.simulation.mutants.mutant import REGRESSIONS
from tests.simulation.plan import read_plan
from tests.simulation.runner import without_collection
from tests.simulation.sizes import run_plan
from tests.simulation.world import World, trace_hash

WORLDS = 600


@pytest.mark.parametrize("first", range(0, WORLDS, 20))
def test_worlds(first):
    with without_collection():
        for seed in range(first, first + 20):
            try:
                World(draw(seed)).run()
            except Exception as error:
                error.add_note(f"python -m tests.simulation {seed} --trace")
                raise
            gc.collect()


def test_plans_of_mended_bugs_do_not_fail():
    paths = sorted(REGRESSIONS.glob("*.json"))
    assert paths
    for path in paths:
        run_plan(read_plan(path.read_text(encoding="utf-8")))


def test_trace_has_the_keys_of_a_set_in_order():
    keys = [MessageKey("node-1", "t", b"%016x" % number) for number in range(8)]
    lines: list[str] = []
    World(draw(0), trace=lines.append).note("%s", FinOutcome(frozenset(keys)))
    assert ", ".join(map(repr, keys)) in lines[-1]


def test_world_is_the_same_in_another_process_with_another_hash_seed():
    seeds = [*range(0, 40, 3), 96000584, 96000829]  # the last two print sets of keys
    program = (
        "from tests.simulation.draw import draw\n"
        "from tests.simulation.world import trace_hash\n"
        "import logging, sys\n"
        "logging.disable(logging.CRITICAL)\n"
        "for seed in map(int, sys.argv[1:]): print(trace_hash(draw(seed)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *map(str, seeds)],
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout.split() == [trace_hash(draw(seed)) for seed in seeds]


def test_another_draw_of_the_engine_changes_no_plan_and_no_other_part(monkeypatch):
    plan = draw(12)
    make = Broker.__init__

    def make_and_draw(self, options, random, *storage):
        random.random()
        make(self, options, random, *storage)

    before = trace_hash(plan)
    monkeypatch.setattr(Broker, "__init__", make_and_draw)
    assert draw(12) == plan
    assert trace_hash(plan) == before


def test_plan_replays_from_its_document():
    for seed in range(10):
        plan = draw(seed)
        assert read_plan(plan.to_json()) == plan
        assert trace_hash(read_plan(plan.to_json())) == trace_hash(plan)


def test_features_and_faults_of_worlds_all_occur():
    verbs = Counter(step.verb for seed in range(300) for step in draw(seed).steps)
    durabilities = Counter(
        options.get("durability", "memory") for seed in range(300) for options in draw(seed).nodes.values()
    )
    wanted = {"kill", "power cut", "stop", "start", "end disk", "fill disk", "fail disk", "suspend", "refuse", "cut"}
    wanted |= {"stall", "half-open", "slow", "fault", "publish", "handle", "leave", "max in flight", "attempt"}
    assert wanted <= verbs.keys()
    assert durabilities.keys() == {"memory", "nsqd", "fsync"}


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
    with pytest.raises(Broken):
        for seed in range(300):
            World(draw(seed)).run()
