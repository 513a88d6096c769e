from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from nsqkit.testing.conformance.run import ATTEMPTS_MAX, FAIL, run, run_case
from nsqkit.testing.conformance.stalls import Stalls
from nsqkit.testing.conformance.suite import CASES, select
from nsqkit.testing.link.faults import Fault, Faults
from nsqkit.testing.servers import NsqdServer
from tests.testing.conformance.brokers import failures, target_of


def test_names_are_unique():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) > 150
    assert [name for name in names if not re.fullmatch(r"[a-z]+/[a-z0-9-]+", name)] == []


def test_every_case_has_a_rule_and_a_file_of_nsqd():
    assert [case.name for case in CASES if not re.fullmatch(r"[A-Z#].*[^.]\.", case.rule)] == []
    assert {case.source.partition("/")[0] for case in CASES} == {"nsqd", "internal"}
    assert all(case.source.endswith(".go") for case in CASES)


def test_patterns_select_cases():
    assert [case.name for case in select("handshake/nop")] == ["handshake/nop"]
    assert {case.name.partition("/")[0] for case in select("touch/*")} == {"touch"}
    assert select("no-such-case") == []


@pytest.mark.parametrize(
    ("name", "break_rule"),
    [
        ("pub/delivery", lambda faults: faults.error("E_PUB_FAILED", command="PUB")),
        ("pub/pipeline", lambda faults: faults.drop_answer(command="PUB", after=3, times=1)),
        ("pub/each-channel", lambda faults: faults.drop(command="MESSAGE", times=1)),
        ("rdy/limit", lambda faults: faults.duplicate()),
        ("rdy/zero", lambda faults: faults.drop(command="RDY", after=1)),
        ("fin/finished", lambda faults: faults.drop(command="FIN")),
        ("fin/unknown-id", lambda faults: faults.reset(command="ERROR")),
        ("req/at-once", lambda faults: faults.drop(command="REQ")),
        ("touch/longer-than-the-timeout", lambda faults: faults.drop(command="TOUCH")),
        ("cls/close-wait", lambda faults: faults.drop(command="CLOSE_WAIT")),
        ("sub/one-of-two-consumers", lambda faults: faults.drop(command="MESSAGE")),
        ("heartbeat/interval", lambda faults: faults.drop(command="HEARTBEAT")),
        ("timeout/redelivery", lambda faults: faults.redeliver(0.1)),
        ("identify/keys-of-the-answer", lambda faults: faults.wrong_type(1, command="RESPONSE")),
        ("names/character", lambda faults: faults.garbage(b"\0\0\0\6\0\0\0\1E_", command="ERROR")),
    ],
)
def test_broker_that_breaks_a_rule_fails(name: str, break_rule: Callable[[Faults], Fault]):
    (case,) = [case for case in CASES if case.name == name]
    with Stalls() as stalls:
        for _ in range(ATTEMPTS_MAX):  # a stall can hide that something came too early
            start = time.monotonic()
            with NsqdServer() as nsqd, break_rule(nsqd.faults):
                outcome = run_case(case, target_of(nsqd, timeout=0.5)).outcome
            if outcome == FAIL or not stalls.since(start):
                break
    assert outcome == FAIL


def test_broker_behind_a_bad_network_passes():
    with NsqdServer() as nsqd, nsqd.faults.slices(1000):
        assert failures(run([case for case in CASES if not case.waits], target_of(nsqd))) == []
