"""Cases: functions and rows of a table, each with a rule in one sentence and the file of nsqd that has it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TypeAlias

import attrs

from nsqkit.testing.conformance.probe import CHANNEL, Probe

Check: TypeAlias = Callable[[Probe], None]


@attrs.frozen
class Case:
    """One case.

    Attributes:
        name: subject and name, as ``publishing/empty-body``.
        rule: the rule in one sentence.
        source: the file of nsqd that has it.
        check: raises Mismatch if the broker breaks the rule, and Skipped if that cannot be found out.
        waits: it takes real time, so it runs beside the others.
        needs_http: it is skipped without an HTTP address.
    """

    name: str
    rule: str
    source: str
    check: Check
    waits: bool = False
    needs_http: bool = False


class Subject:
    """The cases of one subject, in their order.

    Args:
        name: begins the names of the cases.
        source: the file of nsqd that most of its rules are in.
        needs_http: its cases are skipped without an HTTP address.
    """

    def __init__(self, name: str, source: str, *, needs_http: bool = False) -> None:
        self._name = name
        self._source = source
        self._needs_http = needs_http
        self._cases: list[Case] = []

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases)

    def case(self, *, waits: bool = False, source: str = "") -> Callable[[Check], Check]:
        """Return a decorator for a function whose name names a case and whose docstring is the rule."""

        def add(check: Check) -> Check:
            rule = " ".join((inspect.getdoc(check) or "").split())
            self._add(check.__name__, rule, check, waits=waits, source=source)
            return check

        return add

    def refusal(self, name: str, rule: str, command: bytes, error: bytes) -> None:
        """Add a case in which one command of a new connection is refused, and the connection ends.

        ``<topic>`` and ``<channel>`` in the command stand for names of the case.
        """

        def check(probe: Probe) -> None:
            topic = probe.topic()
            connection = probe.connect()
            sent, expected = (
                text.replace(b"<topic>", topic).replace(b"<channel>", CHANNEL) for text in (command, error)
            )
            connection.send(sent)
            connection.expect_error(expected, ends=True)

        self._add(name, rule, check)

    def _add(self, name: str, rule: str, check: Check, *, waits: bool = False, source: str = "") -> None:
        name = f"{self._name}/{name.replace('_', '-')}"
        self._cases.append(Case(name, rule, source or self._source, check, waits, self._needs_http))
