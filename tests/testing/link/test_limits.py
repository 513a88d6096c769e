from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.testing.link.limits import CountedRule, CountedRules, LimitedRule


class Rule(LimitedRule):
    def covers(self, other: Rule) -> bool:
        return self.fault == other.fault


class Fault(CountedRule[Rule]):
    """A rule that selects everything."""


class Faults(CountedRules[Fault]):
    def add(self, fault: str = "drop", times: int | None = None, after: int = 0, probability: float = 1.0) -> Fault:
        return self._put(Fault, Rule(fault=fault, times=times, after=after, probability=probability))


@given(st.integers(0, 5), st.none() | st.integers(1, 5), st.integers(0, 15))
def test_rule_applies_some_times_after_some_items(after: int, times: int | None, items: int) -> None:
    faults = Faults()
    fault = faults.add(times=times, after=after)
    hits = [fault.is_hit() for _ in range(items)]
    end = items if times is None else after + times
    assert hits == [after <= number < end for number in range(items)]
    assert fault.count == sum(hits)
    assert (fault in faults.active.values()) == (fault.count != times)


@given(st.integers(), st.floats(0.1, 0.9))
def test_same_seed_gives_the_same_result(seed: int, probability: float) -> None:
    def hits() -> list[bool]:
        fault = Faults(seed).add(probability=probability)
        return [fault.is_hit() for _ in range(100)]

    assert hits() == hits()


def test_rule_is_removed_once() -> None:
    faults = Faults()
    with faults.add() as fault:
        assert list(faults.active.values()) == [fault]
    assert not faults.active
    assert fault.is_removed
    fault.remove()
    faults.add("one")
    faults.add("two")
    faults.clear()
    assert not faults.active


def test_rule_that_would_never_apply_is_refused() -> None:
    faults = Faults()
    faults.add(times=1)
    faults.add()
    with pytest.raises(OptionError, match="drop would never apply: drop already applies to each item of it"):
        faults.add()
    faults.add("delay")


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"times": 0}, "times is 0; allowed is None or a number from 1"),
        ({"after": -1}, "after is -1; allowed is a number from 0"),
        ({"after": True}, "after is True"),
        ({"probability": 0}, "probability is 0; allowed is a number above 0 and up to 1"),
        ({"probability": 1.5}, "probability is 1.5"),
    ],
    ids=["times", "after", "boolean", "never", "above"],
)
def test_wrong_limit_is_refused(limits: dict[str, Any], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        Faults().add(**limits)
