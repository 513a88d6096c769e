from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.testing.http_faults import Action, Answer, Delay, HTTPFault, HTTPFaults, Reset, Silence


def make_faults(seed: int = 1) -> HTTPFaults:
    return HTTPFaults(["/lookup", "/nodes"], topics=True, seed=seed)


def test_rules_apply_in_their_order_until_one_answers() -> None:
    faults = make_faults()
    faults.slow(2)
    faults.status(500, times=1)
    faults.malformed(b"{")
    assert faults.plan("/lookup", "t") == [Delay(2), Answer(500, None)]
    assert faults.plan("/lookup", "t") == [Delay(2), Answer(None, b"{")]


def test_rule_applies_to_its_path_and_topic_only() -> None:
    faults = make_faults()
    faults.reset(path="/lookup", topic="t")
    requests = [("/lookup", "t"), ("/lookup", "u"), ("/nodes", "")]
    assert [faults.plan(*request) for request in requests] == [[Reset()], [], []]


@given(st.integers(0, 5), st.integers(1, 5), st.integers(0, 15))
def test_rule_applies_some_times_after_some_requests(after: int, times: int, requests: int) -> None:
    faults = make_faults()
    rule = faults.silence(after=after, times=times)
    applied = [bool(faults.plan("/lookup", "t")) for _ in range(requests)]
    assert applied == [after <= number < after + times for number in range(requests)]
    assert rule.count == sum(applied)


def test_probability_follows_the_seed() -> None:
    def applied(seed: int) -> list[list[Action]]:
        faults = make_faults(seed)
        faults.silence(probability=0.5)
        return [faults.plan("/lookup", "t") for _ in range(64)]

    assert applied(1) == applied(1) != applied(2)
    assert [] in applied(1)
    assert [Silence()] in applied(1)


def test_rule_ends_with_its_block_or_when_it_is_removed() -> None:
    faults = make_faults()
    with faults.reset() as rule:
        assert faults.plan("/nodes", "") == [Reset()]
    assert faults.plan("/nodes", "") == []
    assert rule.count == 1
    rule.remove()
    faults.reset()
    faults.clear()
    assert faults.plan("/nodes", "") == []


def test_refused_connections_have_rules_of_their_own() -> None:
    faults = make_faults()
    faults.close_on_accept(times=1, after=1)
    assert faults.plan("/nodes", "") == []
    assert [faults.closes_on_accept() for _ in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    ("add", "error"),
    [
        (lambda faults: faults.slow(-1), "seconds is -1; allowed is 0 seconds or more"),
        (lambda faults: faults.slow(math.nan), "seconds is nan"),
        (lambda faults: faults.status(99), "status is 99; allowed is an int from 200 to 599"),
        (lambda faults: faults.malformed("{"), "body is '{'; allowed are bytes"),
        (
            lambda faults: faults.reset(path="/pub"),
            "path is '/pub', which matches no request; allowed is one of /lookup",
        ),
        (lambda faults: faults.reset(topic="a b"), "topic name 'a b' is not valid"),
        (lambda faults: faults.reset(times=0), "times is 0; allowed is None or a number from 1"),
        (lambda faults: faults.reset(after=-1), "after is -1; allowed is a number from 0"),
        (lambda faults: faults.reset(probability=0), "probability is 0; allowed is a number above 0 and up to 1"),
        (lambda faults: faults.close_on_accept(probability=True), "probability is True"),
    ],
    ids=["seconds", "nan", "status", "body", "path", "topic", "times", "after", "probability", "boolean"],
)
def test_wrong_value_is_refused(add: Callable[[HTTPFaults], HTTPFault], error: str) -> None:
    faults = make_faults()
    with pytest.raises(OptionError, match=error.replace("'{'", r"'\{'")):
        add(faults)
    assert faults.plan("/lookup", "t") == []


def test_topic_is_refused_where_requests_have_none() -> None:
    with pytest.raises(OptionError, match="requests of this server have none"):
        HTTPFaults(["/auth"], topics=False, seed=1).status(500, topic="t")


def test_rule_that_would_never_apply_is_refused() -> None:
    faults = make_faults()
    faults.status(500, path="/lookup")
    faults.silence(path="/nodes")
    with pytest.raises(OptionError, match="malformed would never apply: status already applies to each item of it"):
        faults.malformed(path="/lookup", topic="t")
    faults.slow(1)
