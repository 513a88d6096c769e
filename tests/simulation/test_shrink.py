"""The shrinker: a plan that fails becomes small, and fails in the same way."""

from __future__ import annotations

import pytest

from nsqkit.broker.core.topics.channel import Channel
from nsqkit.wire.frames import OK_FRAME
from tests.simulation.draw import draw
from tests.simulation.plan import Plan, Step, parse_seed, read_plan
from tests.simulation.shrink import failure_of_plan, shrink
from tests.simulation.trace import about, failure_in, trace


def test_only_the_steps_that_are_needed_remain():
    steps = tuple(Step(number, "node-1", "refuse", {"for_us": number, "count": 5}) for number in range(50))
    plan = Plan("1", {"topics": [], "other": 1}, {"node-1": {"x": 1}}, {"c": {"kind": "consumer"}}, steps)

    def fails(plan):
        times = {step.at_us for step in plan.steps}
        return "both" if {7, 31} <= times else "one" if 7 in times else None

    small = shrink(plan, fails=fails)
    assert [step.at_us for step in small.steps] == [7, 31]
    assert [step.values["count"] for step in small.steps] == [1, 1]
    assert (small.players, small.options, small.nodes) == ({}, {"topics": []}, {"node-1": {}})


def test_plan_of_a_broken_engine_becomes_small(monkeypatch):
    monkeypatch.setattr(Channel, "unpause", lambda self: setattr(self, "paused", False))
    plan = next(plan for seed in range(300) if failure_of_plan(plan := draw(seed)) == "invariant 27")
    small = shrink(plan, runs_max=400)
    assert failure_of_plan(small) == "invariant 27"
    assert len(small.steps) <= 12
    assert len(small.players) <= 3


def test_errors_of_two_functions_are_two_kinds_of_failure():
    kinds = [failure.kind for run in (read_plan, parse_seed) if (failure := failure_in(run, "x")) is not None]
    assert kinds == ["PlanError in read_plan", "PlanError in parse_seed"]


def test_plan_that_does_not_fail_is_refused():
    with pytest.raises(AssertionError, match="does not fail"):
        shrink(draw(1))


def test_trace_follows_one_message():
    for seed in range(100):
        lines, error = trace(draw(seed))
        assert error is None
        for delivery in (line for line in lines if "attempt 1" in line):
            chosen = about(lines, delivery.split("b'")[1].rstrip("'").split()[0].rstrip("'."))
            assert 0 < len(chosen) < len(lines)
            if len(chosen) > 3 and all(any(word in line for line in chosen) for word in ("PUB", "attempt 1", "FIN")):
                return
    raise AssertionError("no message was finished")


def test_trace_of_a_failure_has_the_frame_that_is_wrong(monkeypatch):
    monkeypatch.setattr("nsqkit.broker.core.session.session.CLOSE_WAIT_FRAME", OK_FRAME)
    lines, error = next(traced for seed in range(100) if (traced := trace(draw(seed)))[1] is not None)
    assert str(error) == lines[-1]
    assert lines[-2].endswith("── the world fails")
    assert lines[-3].endswith("Response(payload=b'OK')")


def test_trace_has_the_syncs_of_disks():
    lines = next(lines for seed in range(100) if "the disk" in "".join(lines := trace(draw(seed))[0]))
    assert any("the disk writes " in line for line in lines)
    assert any("the disk has synced " in line for line in lines)
