"""Driver worlds, each from a seed: the real clients and daemons on virtual loops of asyncio and trio.

``python -m tests.simulation SEED --size driver --trace`` repeats a world that failed; ``--shrink`` makes it small.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter

import anyio
import pytest

from tests.simulation.broken import Broken
from tests.simulation.driver import asyncio_loop, trio_loop
from tests.simulation.driver.draw import FAULTS, draw
from tests.simulation.driver.sometimes import SOMETIMES, reached_by
from tests.simulation.plan import Plan, check, read_plan
from tests.simulation.sizes import run_plan
from tests.simulation.trace import quiet

WORLDS = 240


@pytest.mark.parametrize("first", range(0, WORLDS, 20))
def test_driver_worlds(first):
    for seed in range(first, first + 20):
        try:
            with quiet():
                run_plan(draw(seed))
        except Exception as error:
            error.add_note(f"python -m tests.simulation {seed} --size driver --trace")
            raise


def trace_hash(seed: int) -> str:
    digest = hashlib.sha256()
    run_plan(draw(seed), lambda line: digest.update(line.encode()))
    return digest.hexdigest()


def has_threads(plan: Plan) -> bool:
    return any("threads" in player for player in plan.players.values())


def test_driver_world_is_the_same_in_another_process_with_another_hash_seed():
    threaded = [seed for seed in range(100) if has_threads(draw(seed))][:5]
    seeds = [*range(10), *threaded]
    program = (
        "import logging, sys\n"
        "logging.disable(logging.CRITICAL)\n"
        "from tests.simulation.driver.test_driver_worlds import trace_hash\n"
        "for seed in map(int, sys.argv[1:]): print(trace_hash(seed))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *map(str, seeds)],
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    with quiet():
        assert ran.stdout.split() == [trace_hash(seed) for seed in seeds]
    assert {draw(seed).options["backend"] for seed in threaded} == {"asyncio", "trio"}


def test_plan_of_a_driver_world_is_checked_and_replays_from_its_document():
    for seed in range(200):
        plan = draw(seed)
        check(plan)
        assert read_plan(plan.to_json()) == plan


def test_all_faults_loops_and_orders_occur():
    plans = [draw(seed) for seed in range(200)]
    verbs = Counter(step.verb for plan in plans for step in plan.steps)
    assert set(FAULTS) - {"clock"} | {"unanswered", "pipeline", "tombstone topic"} <= verbs.keys()
    assert any("dead_letters" in player for plan in plans for player in plan.players.values())
    kinds = {player["kind"] for plan in plans for player in plan.players.values()}
    assert {"thread producer", "thread consumer"} <= kinds
    assert any("relisting" in plan.options for plan in plans)
    answers = {step.values["how"] for plan in plans for step in plan.steps if step.verb == "answer"}
    assert {"hang", "slow", "error", "garbage", "cut", "grant"} == answers
    loops = Counter((plan.options["backend"], plan.options["order"]) for plan in plans)
    assert len(loops) == 4


def test_worlds_reach_states_that_are_named():
    reached = reached_by(range(40))
    assert reached.keys() <= SOMETIMES.keys()
    assert {"leaves with messages", "lost with its answer due", "third attempt"} <= reached.keys()


@pytest.mark.parametrize("loop", [asyncio_loop, trio_loop], ids=["asyncio", "trio"])
def test_world_that_waits_for_ever_says_where(loop):
    async def main(running):
        with anyio.CancelScope() as scope:
            running.pace.on_failure = scope.cancel
            await anyio.Event().wait()

    with pytest.raises(Broken, match=r"invariant 29: .* nothing is ready.*Event.wait"):
        loop.run(main, None)


@pytest.mark.parametrize("loop", [asyncio_loop, trio_loop], ids=["asyncio", "trio"])
def test_world_that_is_never_idle_is_broken(loop):
    async def main(running):
        with anyio.CancelScope() as scope:
            running.pace.on_failure = scope.cancel
            while True:
                await anyio.lowlevel.checkpoint()

    with pytest.raises(Broken, match=r"invariant 29: .* never idle"):
        loop.run(main, None)
