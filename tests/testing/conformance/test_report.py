from __future__ import annotations

import json

import attrs

from nsqkit import __version__
from nsqkit.testing.conformance.case import Case
from nsqkit.testing.conformance.report import Report, list_cases
from nsqkit.testing.conformance.run import FAIL, PASS, SKIP, Result


def case(name: str) -> Case:
    return Case(name, "A rule.", "nsqd/nsqd.go", lambda probe: None)


REPORT = Report(
    tcp_address="127.0.0.1:4150",
    http_address="",
    identify={"version": "1.2.1"},
    results=[
        Result(case=case("a/one"), outcome=PASS, transcript=["sent b'x'"], seconds=0.5),
        Result(case=case("a/two"), outcome=FAIL, expected="one", came="two", transcript=["sent b'x'"]),
        Result(case=case("a/three"), outcome=SKIP, came="no HTTP"),
    ],
    seconds=1.25,
)


def test_text_has_all_that_a_bug_report_needs():
    assert REPORT.to_text().splitlines() == [
        f"nsqkit {__version__} conformance: 127.0.0.1:4150, without HTTP",
        "version: 1.2.1",
        'IDENTIFY: {"version": "1.2.1"}',
        "",
        "PASS  a/one                                A rule. (nsqd/nsqd.go)",
        "FAIL  a/two                                A rule. (nsqd/nsqd.go)",
        "      expected: one",
        "      came: two",
        "      | sent b'x'",
        "SKIP  a/three                              A rule. (nsqd/nsqd.go)",
        "      reason: no HTTP",
        "",
        "3 cases: 1 passed, 1 failed, 1 skipped, in 1.2 s",
    ]


def test_texts_of_the_broker_are_escaped():
    result = Result(case=case("a/two"), outcome=FAIL, expected="one", came="BadStatusLine: \x1b[2J\nPASS  a/two")
    report = attrs.evolve(REPORT, identify={"version": "\ud800"}, results=[result])
    lines = report.to_text().encode().decode().splitlines()
    assert lines[1] == r"version: \ud800"
    assert lines[6] == r"      came: BadStatusLine: \x1b[2J\nPASS  a/two"


def test_json_has_the_same():
    document = json.loads(REPORT.to_json())
    cases = document.pop("cases")
    assert document == {
        "nsqkit": __version__,
        "tcp_address": "127.0.0.1:4150",
        "http_address": "",
        "version": "1.2.1",
        "identify": {"version": "1.2.1"},
        "totals": {"PASS": 1, "FAIL": 1, "SKIP": 1},
        "seconds": 1.25,
    }
    rule = {"rule": "A rule.", "source": "nsqd/nsqd.go"}
    assert cases == [
        {"name": "a/one", **rule, "outcome": "PASS", "seconds": 0.5},
        {
            "name": "a/two",
            **rule,
            "outcome": "FAIL",
            "seconds": 0.0,
            "expected": "one",
            "came": "two",
            "transcript": ["sent b'x'"],
        },
        {"name": "a/three", **rule, "outcome": "SKIP", "seconds": 0.0, "reason": "no HTTP"},
    ]


def test_list_has_a_line_for_each_case():
    assert list_cases([case("a/one")]) == "a/one                                A rule. (nsqd/nsqd.go)\n"
