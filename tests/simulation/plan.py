"""Plans: worlds as data. A plan has the options of a world, its nodes and players, and its steps, each with a time.

A plan is drawn from a seed (``tests.simulation.draw``) or read from a file. It replays without the code that drew it: a
step has all its values, and a world draws nothing that changes a plan. So a plan survives changes of the engine and of
the drawing, and a step can be taken out without an effect on the others.

        {"version": 1, "seed": "12", "options": {…}, "nodes": {"node-1": {…}}, "players": {"producer-1": {…}},
         "steps": [{"at_us": 1500, "who": "producer-1", "verb": "publish", …}, …]}
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

VERSION: Final = 1

NODE_VERBS: Final = frozenset(
    (
        *("pause channel", "unpause channel", "make channel", "empty channel", "delete channel"),
        *("pause topic", "unpause topic", "empty topic", "delete topic"),
        *("kill", "power cut", "stop", "start", "suspend", "refuse"),
        *("end disk", "fill disk", "fail disk", "slow disk", "recover disk", "damage disk"),
        *("move", "partition", "stats"),
        *("fail auth", "grant", "revoke"),
    )
)
LOOKUPD_VERBS: Final = frozenset(
    (
        *("kill", "power cut", "stop", "start", "suspend", "refuse", "unanswered", "answers", "partition", "raw"),
        *("make topic", "make channel", "delete topic", "delete channel", "tombstone topic", "list"),
    )
)
PLAYER_VERBS: Final = {
    "producer": frozenset(("connect", "publish", "cancel", "leave")),
    "http producer": frozenset(("publish", "cancel")),
    "thread producer": frozenset(("publish", "leave")),
    "thread consumer": frozenset(("connect", "max in flight", "pause", "resume", "leave", "disconnect")),
    "consumer": frozenset(
        (
            *("connect", "connect wrong", "receive again", "handle", "max in flight"),
            *("pause", "resume", "leave", "disconnect", "confirm"),
        )
    ),
    "raw": frozenset(("send", "pipeline")),
    "partition": frozenset(("attempt", "kill", "stall")),
    "auth server": frozenset(("kill", "start", "refuse", "answer")),
    "foreign": frozenset(("send", "close")),
}
LINK_VERBS: Final = frozenset(
    ("cut", "stall", "half-open", "slow", "mute", "unanswered", "fault", "inject", "late end")
)
KINDS: Final = tuple(PLAYER_VERBS)


class PlanError(Exception):
    """A plan, or the number of one, that cannot be used; the text is one sentence."""


@attrs.frozen
class Step:
    """One step of a world.

    Attributes:
        at_us: the time since the start, in microseconds.
        who: the node, the player, or with ``player/node`` the connection that it is about.
        verb: the action.
        values: the arguments of the action.
    """

    at_us: int
    who: str
    verb: str
    values: dict[str, Any] = attrs.field(factory=dict)

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.at_us / 1e6:.6f} {self.who}: {self.verb} {values}".rstrip()


@attrs.frozen
class Plan:
    """A world as data.

    Attributes:
        seed: the beginning of the names of all random generators.
        options: of the world.
        nodes: the options of each broker, by name.
        players: the kind and the options of each player, by name.
        steps: in the order of their times.
        lookupds: the options of each nsqlookupd, by name.
    """

    seed: str
    options: dict[str, Any] = attrs.field(factory=dict)
    nodes: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    players: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    steps: tuple[Step, ...] = ()
    lookupds: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def to_json(self) -> str:
        """Return the document, with one step on each line."""
        head: dict[str, Any] = {"version": VERSION, "seed": self.seed, "options": self.options}
        if self.lookupds:
            head["lookupds"] = self.lookupds
        lines = [json.dumps(head)[:-1], f'"nodes": {json.dumps(self.nodes)}', f'"players": {json.dumps(self.players)}']
        steps = [
            json.dumps({"at_us": step.at_us, "who": step.who, "verb": step.verb, **step.values}) for step in self.steps
        ]
        return ",\n".join([*lines, '"steps": [\n' + ",\n".join(steps) + "\n]}\n"])


def parse_seed(text: str) -> int:
    """Return the number of a world.

    Raises:
        PlanError: the text is not a whole number from 0 on.
    """
    if not (text.isascii() and text.isdigit()):
        raise PlanError(f"a seed is a whole number from 0 on, not {text!r}")
    return int(text)


def read_plan(text: str) -> Plan:
    """Return the plan that a document describes.

    Raises:
        PlanError: it is no plan, or one of another version, or it names a player that is not there.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PlanError(f"the file is no plan: {error}") from error
    if not isinstance(document, dict) or "version" not in document:
        raise PlanError("the file is no plan: it is no JSON object with a version")
    if document.pop("version") != VERSION:
        raise PlanError(f"the plan has another version than {VERSION}, which alone can be run")
    try:
        steps = tuple(_step(dict(entry)) for entry in document.pop("steps", ()))
        plan = Plan(steps=steps, **document)
    except (TypeError, ValueError, KeyError) as error:
        raise PlanError(f"the file is no plan: {error!r}") from error
    check(plan)
    return plan


def _step(entry: dict[str, Any]) -> Step:
    return Step(int(entry.pop("at_us")), str(entry.pop("who")), str(entry.pop("verb")), entry)


def check(plan: Plan) -> None:
    """Refuse a plan whose parts do not fit together.

    Raises:
        PlanError: a step or a player names something that is not there, or the steps are not in order.
    """
    for name, player in plan.players.items():
        if player.get("kind") not in KINDS:
            raise PlanError(f"player {name} is of kind {player.get('kind')!r}, not one of {', '.join(KINDS)}")
        for node in {player["node"]} if "node" in player else set(player.get("nodes", ())):
            if node not in plan.nodes:
                raise PlanError(f"player {name} uses {node!r}, which is none of the nodes {list(plan.nodes)}")
        for lookupd in set(player.get("lookupds", ())) - set(plan.lookupds):
            raise PlanError(f"player {name} uses {lookupd!r}, which is none of the nsqlookupds {list(plan.lookupds)}")
    last_us = 0
    for step in plan.steps:
        _check_step(plan, step)
        if step.at_us < last_us:
            raise PlanError(f"the steps are not in the order of their times: {step}")
        last_us = step.at_us


def _check_step(plan: Plan, step: Step) -> None:
    first, _, second = step.who.partition("/")
    verbs: frozenset[str]
    if second:
        ends = (plan.players, {**plan.nodes, **plan.lookupds}), (plan.nodes, plan.lookupds)
        verbs = LINK_VERBS if any(first in one and second in other for one, other in ends) else frozenset()
    elif first in plan.lookupds:
        verbs = LOOKUPD_VERBS
    elif first in plan.nodes:
        verbs = NODE_VERBS
    else:
        verbs = PLAYER_VERBS[plan.players[first]["kind"]] if first in plan.players else frozenset()
    if not verbs:
        raise PlanError(f"a step names {step.who!r}, which is not in the plan: {step}")
    if step.verb not in verbs:
        raise PlanError(f"{step.who} has no action {step.verb!r}: {step}")
