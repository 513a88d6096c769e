"""Runs cases against a broker: those that wait beside each other and beside the rest, which run one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import attrs

from nsqkit.errors import NegotiationFailed, NotConnected
from nsqkit.testing.conformance.case import Case
from nsqkit.testing.conformance.probe import NO_HTTP, Probe
from nsqkit.testing.conformance.received import Mismatch, Skipped
from nsqkit.testing.conformance.stalls import Stalls

PASS: Final = "PASS"
FAIL: Final = "FAIL"
SKIP: Final = "SKIP"

_SECOND: Final = 1_000_000_000

LEAST_OPTIONS: Final = {
    "mem_queue_size": 2,  # an ephemeral topic has its messages in memory only
    "max_rdy_count": 10,
    "max_msg_size": 256,
    "max_body_size": 10_000,
    "msg_timeout": _SECOND,
    "max_msg_timeout": 60 * _SECOND,
    "max_req_timeout": 5 * _SECOND,
    "max_heartbeat_interval": _SECOND,
    "max_output_buffer_size": 64,
}
"""The least values of options, by their names in ``/config``, with which nsqd itself passes all cases."""

ATTEMPTS_MAX: Final = 5
"""How often a case runs that fails while this process stalls."""

_TLS_REQUIRED = b"(TLS required)"


@attrs.frozen(kw_only=True)
class Target:
    """A broker to check.

    Attributes:
        tcp_address: ``host:port`` of the protocol.
        http_address: ``host:port`` of the HTTP routes, empty for none.
        timeout: seconds for each answer.
    """

    tcp_address: str
    http_address: str = ""
    timeout: float = 5.0

    def probe(self) -> Probe:
        """Return the broker as one case uses it."""
        return Probe(self.tcp_address, self.http_address, timeout=self.timeout)


@attrs.frozen(kw_only=True)
class Result:
    """The result of a case.

    Attributes:
        case: the case.
        outcome: PASS, FAIL or SKIP.
        expected: the expected item; empty unless it failed.
        came: the item that came instead, or the reason why the case was skipped.
        transcript: everything that was sent and received.
        seconds: how long it took.
    """

    case: Case
    outcome: str
    expected: str = ""
    came: str = ""
    transcript: Sequence[str] = ()
    seconds: float = 0.0


def contact(target: Target) -> dict[str, Any]:
    """Return the broker's answer to IDENTIFY.

    Raises:
        NotConnected: an address cannot be reached, or has no broker.
        NegotiationFailed: the broker requires AUTH or TLS, which the cases do not use, or one of its limits is too low.
    """
    address = target.tcp_address
    with target.probe() as probe:
        try:
            connection = probe.connect()
        except OSError as error:
            raise NotConnected(f"cannot connect to {address}: {error.strerror or error}") from error
        try:
            answer = connection.identify()
            connection.send(b"CLS\n")
            refusal = connection.receive()
        except Mismatch as error:
            raise NotConnected(f"{address} does not answer IDENTIFY as an nsqd: {error}") from error
        if answer.get("auth_required") is True:
            raise NegotiationFailed(f"the broker at {address} requires AUTH, which the cases do not use")
        if refusal.payload.endswith(_TLS_REQUIRED):
            raise NegotiationFailed(f"the broker at {address} requires TLS, which most cases do not use")
        if target.http_address:
            try:
                _check_options(probe, address)
            except Mismatch as error:
                raise NotConnected(f"no HTTP at {target.http_address}: {error.came}") from error
    return answer


def _check_options(probe: Probe, address: str) -> None:
    for name, least in LEAST_OPTIONS.items():
        if (value := probe.option(name, least)) < least:
            raise NegotiationFailed(
                f"/config/{name} of the broker at {address} is {value}; the cases need at least {least}"
            )
    if probe.option("max_channel_consumers", 0) == 1:
        raise NegotiationFailed(
            f"/config/max_channel_consumers of the broker at {address} is 1; the cases need at least 2, or 0"
        )


def run(cases: Iterable[Case], target: Target) -> list[Result]:
    """Run cases and return their results in the same order."""
    cases = list(cases)
    with Stalls() as stalls, ThreadPoolExecutor(1 + sum(case.waits for case in cases)) as pool:
        waiting = {case.name: pool.submit(run_case, case, target, stalls) for case in cases if case.waits}
        results = {case.name: run_case(case, target, stalls) for case in cases if not case.waits}
        return [results.get(case.name) or waiting[case.name].result() for case in cases]


def run_case(case: Case, target: Target, stalls: Stalls | None = None) -> Result:
    """Run one case and return its result; with ``stalls``, run it again if it fails while this process stalls."""
    for _ in range(ATTEMPTS_MAX - 1):
        start = time.monotonic()
        result = _attempt(case, target)
        if stalls is None or result.outcome != FAIL or not stalls.since(start):
            return result
    return _attempt(case, target)


def _attempt(case: Case, target: Target) -> Result:
    start = time.monotonic()
    outcome, expected, came = PASS, "", ""
    with target.probe() as probe:
        try:
            if case.needs_http and not target.http_address:
                raise Skipped(NO_HTTP)
            case.check(probe)
        except Skipped as error:
            outcome, came = SKIP, str(error)
        except Mismatch as error:
            outcome, expected, came = FAIL, error.expected, error.came
        except OSError as error:
            outcome, expected, came = FAIL, "a connection", str(error)
        except (LookupError, TypeError, AttributeError) as error:
            outcome, expected, came = FAIL, "a document with the keys of nsqd's", f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - start
    return Result(
        case=case, outcome=outcome, expected=expected, came=came, transcript=probe.transcript, seconds=seconds
    )
