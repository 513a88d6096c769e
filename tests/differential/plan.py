"""Plans: command sequences as data, drawn from a seed or read from a file.

A step has all its values, so a plan replays without the code that drew it, and a step can be taken out. Bytes are
written as Latin-1 text. A text may have these references, which each run replaces:

- ``<t0>`` is a topic with a new name, the same one in both programs;
- ``<a3>`` is the id of message 3 that connection ``a`` received, modulo their number;
- ``<http>`` is the host and port of the program's HTTP server.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

VERSION: Final = 1
PROGRAMS: Final = ("nsqd", "nsqlookupd")

VERBS: Final = {
    "connect": {"on", "magic"},
    "send": {"on", "data", "answers", "ends", "sub", "ready"},
    "http": {"method", "path", "body", "headers"},
    "close": {"on"},
    "settle": set[str](),
    "hand over": set[str](),
}
"""Each verb of a step, with the names of its values.

``send``: ``answers`` is the number of responses if no command fails, ``ends`` closes the sending direction afterwards,
``sub`` is the channel that the connection subscribes to, and ``ready`` the RDY count that it sets.
"""

REQUIRED: Final = {
    "connect": {"on"},
    "send": {"on", "data", "answers"},
    "http": {"method", "path"},
    "close": {"on"},
}


class PlanError(Exception):
    """A plan, or the number of one, that cannot be used; the text is one sentence."""


@attrs.frozen
class Step:
    """One step of a plan: its verb, one of VERBS, and its values."""

    verb: str
    values: dict[str, Any] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return " ".join([self.verb, *(f"{name}={value!r}" for name, value in self.values.items())])


@attrs.frozen
class Plan:
    """A command sequence.

    Attributes:
        program: one of PROGRAMS.
        options: the flags of both programs, by name.
        steps: in their order.
    """

    program: str
    options: dict[str, str] = attrs.field(factory=dict)
    steps: tuple[Step, ...] = ()

    def to_json(self) -> str:
        """Return the document, with one step on each line."""
        head = json.dumps({"version": VERSION, "program": self.program, "options": self.options})[:-1]
        steps = [json.dumps({"verb": step.verb, **step.values}) for step in self.steps]
        return head + ',\n"steps": [\n' + ",\n".join(steps) + "\n]}\n"


def parse_seed(text: str) -> int:
    """Return the number of a plan.

    Raises:
        PlanError: the text is not a whole number from 0 on.
    """
    if not (text.isascii() and text.isdigit()):
        raise PlanError(f"a seed is a whole number from 0 on, not {text!r}")
    return int(text)


def read_plan(text: str) -> Plan:
    """Return the plan that a document describes.

    Raises:
        PlanError: it is no plan, or one of another version.
    """
    try:
        document = json.loads(text)
        version, program = document["version"], document["program"]
        options, entries = document["options"], document["steps"]
        steps = tuple(Step(entry.pop("verb"), entry) for entry in entries)
        plan = Plan(program, {str(name): str(value) for name, value in options.items()}, steps)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise PlanError(f"the file is no plan: {error!r}") from error
    if version != VERSION:
        raise PlanError(f"the plan has version {version!r}, but only {VERSION} can be run")
    if program not in PROGRAMS:
        raise PlanError(f"a plan is for one of {', '.join(PROGRAMS)}, not for {program!r}")
    for step in plan.steps:
        _check(step)
    return plan


def _check(step: Step) -> None:
    if step.verb not in VERBS:
        raise PlanError(f"a step has one of the verbs {', '.join(VERBS)}, not {step.verb!r}")
    if missing := REQUIRED.get(step.verb, set()) - set(step.values):
        raise PlanError(f"a step lacks {', '.join(sorted(missing))}: {step}")
    if unknown := set(step.values) - VERBS[step.verb]:
        raise PlanError(f"a step has the unknown value {', '.join(sorted(unknown))}: {step}")
