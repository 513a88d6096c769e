from __future__ import annotations

from nsqkit.testing.conformance.case import Case, Subject
from nsqkit.testing.conformance.probe import Probe
from nsqkit.testing.conformance.run import FAIL, PASS, run_case
from tests.testing.conformance.brokers import right_broker


def test_a_function_is_a_case():
    subject = Subject("pub", "nsqd/a.go", needs_http=True)

    @subject.case(waits=True, source="nsqd/b.go")
    def of_a_message(probe: Probe) -> None:
        """A rule
        on two lines.
        """

    assert list(subject) == [
        Case("pub/of-a-message", "A rule on two lines.", "nsqd/b.go", of_a_message, waits=True, needs_http=True)
    ]


def test_a_refusal_is_a_case():
    subject = Subject("sub", "nsqd/a.go")
    subject.refusal("right", "A rule.", b"SUB <topic>\n", b"E_INVALID SUB insufficient number of parameters")
    subject.refusal("wrong", "A rule.", b"SUB <topic> <channel>\n", b"E_INVALID")
    with right_broker() as target:
        right, wrong = (run_case(case, target) for case in subject)
    assert (right.case.name, right.case.source, right.outcome) == ("sub/right", "nsqd/a.go", PASS)
    assert (wrong.outcome, wrong.expected, wrong.came) == (FAIL, "error b'E_INVALID'", "response b'OK'")
