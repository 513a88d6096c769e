from __future__ import annotations

import re
import threading
from typing import Any

import attrs
import pytest

from nsqkit.errors import NegotiationFailed, NotConnected
from nsqkit.testing.conformance.case import Case, Subject
from nsqkit.testing.conformance.probe import NO_HTTP, Probe
from nsqkit.testing.conformance.received import Mismatch, Skipped
from nsqkit.testing.conformance.run import (
    ATTEMPTS_MAX,
    FAIL,
    LEAST_OPTIONS,
    PASS,
    SKIP,
    Target,
    contact,
    run,
    run_case,
)
from nsqkit.testing.conformance.stalls import Stalls
from nsqkit.testing.conformance.suite import CASES
from nsqkit.wire.frames import OK_FRAME
from tests.testing.conformance.brokers import failures, mute_broker, prepared_broker, right_broker
from tests.threads import WAIT_LIMIT

UNREACHABLE = Target(tcp_address="127.0.0.1:1", timeout=1.0)


def case(check, **options) -> Case:
    return Case("a/b", "A rule.", "nsqd/nsqd.go", check, **options)


def raiser(error: Exception):
    def check(probe: Probe) -> None:
        raise error

    return check


@pytest.mark.parametrize(
    ("error", "outcome", "expected", "came"),
    [
        (Mismatch("one", "two"), FAIL, "one", "two"),
        (Skipped("no such option"), SKIP, "", "no such option"),
        (KeyError("depth"), FAIL, "a document with the keys of nsqd's", "KeyError: 'depth'"),
        (ConnectionResetError("reset"), FAIL, "a connection", "reset"),
    ],
    ids=["mismatch", "skipped", "key", "connection"],
)
def test_errors_are_results(error, outcome, expected, came):
    result = run_case(case(raiser(error)), UNREACHABLE)
    assert (result.outcome, result.expected, result.came) == (outcome, expected, came)


def test_result_has_the_transcript():
    with right_broker() as target:
        result = run_case(case(lambda probe: probe.publish(b"t", b"x")), target)
    assert result.outcome == PASS
    assert len(result.transcript) == 3


def test_case_that_needs_http_is_skipped_without_it():
    result = run_case(case(raiser(AssertionError()), needs_http=True), UNREACHABLE)
    assert (result.outcome, result.came) == (SKIP, NO_HTTP)


@pytest.mark.parametrize(("stall_count", "attempt_count"), [(0, 1), (1, 2), (100, ATTEMPTS_MAX)])
def test_case_that_fails_during_a_stall_runs_again(stall_count, attempt_count):
    attempts: list[Probe] = []

    def check(probe: Probe) -> None:
        attempts.append(probe)
        raise Mismatch("one", str(len(attempts)))

    class FirstStalls(Stalls):
        def since(self, start: float) -> bool:
            return bool(len(attempts) <= stall_count)

    result = run_case(case(check), UNREACHABLE, FirstStalls())
    assert (result.outcome, result.came) == (FAIL, str(attempt_count))
    assert len(attempts) == attempt_count


def test_case_that_passes_during_a_stall_runs_once():
    attempts: list[Probe] = []

    class Always(Stalls):
        def since(self, start: float) -> bool:
            return True

    assert run_case(case(attempts.append), UNREACHABLE, Always()).outcome == PASS
    assert len(attempts) == 1


def test_waiting_cases_run_beside_the_others():
    subject = Subject("a", "nsqd/nsqd.go")
    all_run = threading.Barrier(3)
    for name in ("one", "two", "three"):

        def check(probe: Probe) -> None:
            """A rule."""
            all_run.wait(WAIT_LIMIT)

        check.__name__ = name
        subject.case(waits=name != "three")(check)
    with right_broker() as target:
        results = run(subject, target)
    assert [(result.case.name, result.outcome) for result in results] == [
        ("a/one", PASS),
        ("a/two", PASS),
        ("a/three", PASS),
    ]


def test_contact_returns_the_answer_to_identify():
    with right_broker() as target:
        assert contact(target)["version"] == "1.3.0"
        assert contact(attrs.evolve(target, http_address=""))["max_rdy_count"] == 2500


def test_wrong_addresses_are_named():
    with pytest.raises(NotConnected, match=r"^cannot connect to 127\.0\.0\.1:1: Connection refused$"):
        contact(UNREACHABLE)
    with right_broker() as target, pytest.raises(NotConnected, match=r"^no HTTP at 127\.0\.0\.1:1: "):
        contact(attrs.evolve(target, http_address="127.0.0.1:1"))
    with (
        mute_broker() as target,
        pytest.raises(NotConnected, match=r"does not answer IDENTIFY as an .* nothing$"),
    ):
        contact(target)
    with prepared_broker(OK_FRAME) as target, pytest.raises(NotConnected, match=r"came response b'OK'$"):
        contact(target)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"auth_http_address": ["127.0.0.1:1"]}, "requires AUTH, which "),
        ({"tls_required": "tcp-https"}, "requires TLS, which "),
    ],
    ids=["auth", "tls"],
)
def test_broker_on_which_the_cases_cannot_run_is_refused(options, text, tmp_path):
    with right_broker(tmp_path, **options) as target:
        with pytest.raises(NegotiationFailed, match=re.escape(f"the broker at {target.tcp_address} {text}")):
            contact(target)


def option(name: str, value: int) -> dict[str, Any]:
    return {name: f"{value}ns" if name.endswith(("_timeout", "_interval")) else value}


@pytest.mark.parametrize(("name", "least"), LEAST_OPTIONS.items())
def test_broker_with_a_limit_that_is_too_low_is_refused(name, least):
    with right_broker(**option(name, least)) as target:
        contact(target)
    text = f"/config/{name} of the broker at .* is {least - 1}; the cases need at least {least}"
    with right_broker(**option(name, least - 1)) as target, pytest.raises(NegotiationFailed, match=f"^{text}$"):
        contact(target)


def test_broker_with_one_consumer_for_a_channel_is_refused():
    with right_broker(max_channel_consumers=1) as target:
        with pytest.raises(
            NegotiationFailed, match=r"^/config/max_channel_consumers .* is 1; the cases need at least 2"
        ):
            contact(target)


def test_broker_with_the_least_options_passes():
    options: dict[str, Any] = {"max_channel_consumers": 2}
    for name, least in LEAST_OPTIONS.items():
        options |= option(name, least)
    with right_broker(**options) as target:
        assert failures(run(CASES, target)) == []
