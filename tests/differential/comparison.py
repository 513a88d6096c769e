"""The comparison of two programs: each step is given to both, and their answers are compared before the next one.

A step ends with a barrier: a command that is answered after all earlier ones. A delivery has no answer, so ``settle``
reads ``/stats`` of both programs until they are equal and no message can move. Only one consumer of a channel has a RDY
count above 0, so the messages of each connection are determined.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from tests.differential.plan import Plan, Step
from tests.differential.program import ProgramError
from tests.differential.side import Side
from tests.differential.views import View, differences_of, is_at_rest, message_counts

SETTLE_LIMIT: Final = 2.0
"""Seconds in which both programs have to agree."""

FLUSHES_MAX: Final = 4
"""How often messages are flushed that have not arrived."""

_prefixes = (f"d{os.getpid()}r{number}" for number in itertools.count())


@attrs.frozen
class Difference:
    """A place in which the programs differ.

    Attributes:
        number: of the step.
        step: the step.
        where: the place in the answers, as a path.
        reference: the value of nsqd or nsqlookupd.
        ours: the value of nsqkit.
    """

    number: int
    step: Step
    where: str
    reference: Any
    ours: Any

    def __str__(self) -> str:
        return f"step {self.number}, {self.step}\n  {self.where}\n  nsq:    {self.reference!r}\n  nsqkit: {self.ours!r}"


@attrs.frozen
class Rule:
    """A known difference.

    Attributes:
        row: the first cell of a row of docs/conformance.md.
        explains: returns whether the row is the reason of a difference.
        parts: the programs are in different states afterwards, so the rest of the plan cannot be compared.
    """

    row: str
    explains: Callable[[Difference, Plan], bool]
    parts: bool = False


Explain: TypeAlias = Callable[[Difference, Plan], Rule | None]
"""Returns the rule that explains a difference; None if there is none."""


class _Parted(Exception):
    """A known difference after which the programs are in different states."""


class Comparison:
    """Runs plans on two programs.

    Args:
        reference: nsqd or nsqlookupd.
        ours: the program of nsqkit.
        explain: the rules of known differences.

    Attributes:
        explained: how often each known difference was found.
    """

    def __init__(self, reference: Side, ours: Side, explain: Explain) -> None:
        self._sides = (reference, ours)
        self._explain = explain
        self._plan = Plan("nsqd")
        self._found: list[Difference] = []
        self._damaged: set[Path] = set()
        self.explained: dict[str, int] = {}

    def run(self, plan: Plan) -> list[Difference]:
        """Run a plan up to the first step with a difference that has no explanation; return those of this step."""
        self._plan, self._found = plan, []
        prefix = next(_prefixes)
        for side in self._sides:
            side.begin(prefix)
        try:
            for number, step in enumerate(plan.steps):
                self._run_step(number, step)
                if self._found:
                    break
            else:
                self._settle(len(plan.steps), Step("settle"))
        except _Parted:
            pass
        finally:
            self._clean_up()
        return self._found

    def close(self) -> None:
        """Close all connections."""
        for side in self._sides:
            side.disconnect()

    def _compare(self, number: int, step: Step, reference: Any, ours: Any, where: str = "") -> None:
        found = []
        for place, value, other in differences_of(reference, ours, where):
            difference = Difference(number, step, place, value, other)
            rule = self._explain(difference, self._plan)
            if rule is None:
                found.append(difference)
                continue
            self.explained[rule.row] = self.explained.get(rule.row, 0) + 1
            if rule.parts:
                raise _Parted
        self._found += found

    def _run_step(self, number: int, step: Step) -> None:
        if step.verb in {"connect", "close"}:
            self._end_connection(step.values["on"])
        if step.verb == "connect":
            self._both(number, step, Side.connect, Side.connected)
        elif step.verb == "settle":
            self._settle(number, step)
        elif step.verb == "hand over":
            self._hand_over(number, step)
        elif step.verb == "http":
            self._request(number, step)
        elif self._sides[0].is_closed(step.values["on"]):
            return
        elif step.verb != "close" and not self._would_share(step):
            self._both(number, step, Side.send, Side.sent)

    def _end_connection(self, name: str) -> None:
        """Close a connection, if it is open, and wait until neither program has it in a channel."""
        were_subscribed = [side.close(name) for side in self._sides]
        if not any(were_subscribed):
            return
        limit = time.monotonic() + SETTLE_LIMIT
        for delay in _delays():
            views = self._ask("GET", self._sides[0].dialect.settled_paths[0])
            if time.monotonic() > limit or not any(name in message_counts(view["body"]) for view in views):
                return
            _wait(delay)

    def _both(
        self, number: int, step: Step, act: Callable[[Side, Step], None], result: Callable[[Side, Step], dict[str, Any]]
    ) -> None:
        for side in self._sides:
            act(side, step)
        reference, ours = (result(side, step) for side in self._sides)
        self._compare(number, step, reference, ours, "answers")

    def _would_share(self, step: Step) -> bool:
        """Return whether a second consumer of a channel would get messages; then the step is left out."""
        if not step.values.get("ready"):
            return False
        connections = self._sides[0].connections
        own = connections[step.values["on"]]
        return any(
            other is not own and other.channel == own.channel and other.ready > 0 for other in connections.values()
        )

    def _request(self, number: int, step: Step) -> None:
        values = step.values
        words = (values["method"], values["path"], values.get("body"), values.get("headers"))
        limit = time.monotonic() + (SETTLE_LIMIT if values["method"] == "GET" else 0)
        for delay in _delays():
            reference, ours = self._ask(*words)
            if reference == ours or time.monotonic() > limit or not self._is_unexplained(number, step, reference, ours):
                break
            _wait(delay)
        self._compare(number, step, reference, ours, "http")

    def _is_unexplained(self, number: int, step: Step, reference: Any, ours: Any) -> bool:
        return any(
            self._explain(Difference(number, step, place, value, other), self._plan) is None
            for place, value, other in differences_of(reference, ours, "http")
        )

    def _ask(
        self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[View, View]:
        for side in self._sides:
            side.request(method, path, body, headers)
        reference, ours = (side.answer() for side in self._sides)
        return reference, ours

    def _settle(self, number: int, step: Step) -> None:
        """Wait until both programs agree and no message can move; then compare the messages that arrived."""
        limit = time.monotonic() + SETTLE_LIMIT
        typed = self._sides[0].dialect.typed
        for path in self._sides[0].dialect.settled_paths:
            for delay in _delays():
                reference, ours = self._ask("GET", path)
                late = time.monotonic() > limit
                if late or (
                    (not typed or is_at_rest(ours["body"])) and not self._is_unexplained(number, step, reference, ours)
                ):
                    break
                _wait(delay)
            self._compare(number, step, reference, ours, "stats")
            if typed:
                self._compare_messages(number, step, (reference, ours))

    def _compare_messages(self, number: int, step: Step, answers: tuple[View, View]) -> None:
        arrived = [False, False]
        for _ in range(FLUSHES_MAX):  # nsqd may write a message to its output buffer after it has counted it
            for side in self._sides:
                side.flush()
            pairs = zip(self._sides, answers, strict=True)
            arrived = [side.collect(answer["body"], SETTLE_LIMIT / FLUSHES_MAX) for side, answer in pairs]
            if all(arrived):
                break
        self._compare(number, step, arrived[0], arrived[1], "all messages have arrived")
        reference, ours = (side.take() for side in self._sides)
        self._compare(number, step, reference, ours, "messages")

    def _hand_over(self, number: int, step: Step) -> None:
        """Stop both programs, exchange their data paths, and start them."""
        reference, ours = self._sides
        try:
            for side in self._sides:
                side.stop()
            self._compare(number, step, _metadata(reference), _metadata(ours), "nsqd.dat")
            self._compare(number, step, self._new_damage(reference), self._new_damage(ours), "damaged files")
            reference.program.data_path, ours.program.data_path = ours.program.data_path, reference.program.data_path
            reference.identities, ours.identities = ours.identities, reference.identities
            for side in self._sides:
                side.program.start()
        except ProgramError as error:
            self._found.append(Difference(number, step, "hand over", "", str(error)))
        else:
            self._settle(number, step)

    def _new_damage(self, side: Side) -> list[str]:
        """Return the files that the program has renamed to ``.bad`` since the last call."""
        found = set(side.program.data_path.glob("*.bad")) - self._damaged
        self._damaged |= found
        return sorted(path.name for path in found)

    def _clean_up(self) -> None:
        """Delete the topics of the sequence; then both programs are as before."""
        for side in self._sides:
            side.close_all()
        try:
            topics, _ = self._ask("GET", "/topics" if not self._sides[0].dialect.typed else "/stats?format=json")
            names: Iterable[str] = topics["body"]["topics"] or ()
            for name in names:
                self._ask("POST", f"/topic/delete?topic={name.replace('#', '%23')}")
        except OSError:  # a program is down, and the difference says so
            return


def _metadata(side: Side) -> Any:
    """Return the topics of nsqd.dat, sorted, with their channels."""
    document = json.loads((side.program.data_path / "nsqd.dat").read_bytes())
    topics = document["topics"] or ()
    for topic in topics:
        topic["channels"] = sorted(topic["channels"] or (), key=str)
    return sorted(topics, key=str)


def _delays() -> Iterable[float]:
    """Return the pauses between two readings of a state: they grow up to 20 ms."""
    return itertools.chain((0.0, 0.0, 0.001, 0.002, 0.005, 0.01), itertools.repeat(0.02))


def _wait(seconds: float) -> None:
    select.select([], [], [], seconds)
