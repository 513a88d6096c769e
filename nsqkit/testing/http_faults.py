"""The faults of an HTTP server: rules that apply to its answers.

A rule counts requests, and ``plan`` returns the actions for a request, which ``nsqkit.testing.http_front`` performs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final, TypedDict, Unpack

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.checks import make_options, take_seconds
from nsqkit.options.durations import Seconds
from nsqkit.testing.link.limits import CountedRule, CountedRules, LimitedRule
from nsqkit.wire.names import encode_topic

STATUS_MIN: Final = 200
STATUS_MAX: Final = 599

MALFORMED: Final = b'{"producers":[{"broadcast_address":'
"""The body of ``malformed`` by default: JSON that ends too early."""


class Limits(TypedDict, total=False):
    """How often a rule applies (``LimitedRule``)."""

    times: int | None
    after: int
    probability: float


class Which(Limits, total=False):
    """The requests to which a rule applies (``HTTPRule``)."""

    path: str | None


class When(Which, total=False):
    """The same with ``topic``: only the requests with this topic."""

    topic: str | None


@attrs.frozen
class Action:
    """The effect of a rule.

    Attributes:
        is_last: no later rule applies to the same request.
    """

    is_last: ClassVar[bool] = False

    def concerns(self, path: str, topic: str) -> bool:
        """Return True if it has an effect on the answer to a request."""
        return True


@attrs.frozen
class Delay(Action):
    """Answer later, by this number of seconds."""

    seconds: float


@attrs.frozen
class Answer(Action):
    """Answer with this instead; ``status`` is None for the server's own, ``body`` for NSQ's document."""

    is_last = True
    status: int | None
    body: bytes | None


@attrs.frozen
class Silence(Action):
    """Never answer."""

    is_last = True


@attrs.frozen
class Reset(Action):
    """Reset the connection when the request has come."""

    is_last = True


@attrs.frozen
class CloseOnAccept(Action):
    """Close the connection when it is accepted."""


@attrs.frozen(kw_only=True)
class HTTPRule(LimitedRule):
    """A selection of requests, and an action.

    Attributes:
        action: the effect.
        path: only the requests of this path; None for all.
        topic: only the requests with this topic; None for all.
    """

    action: Action
    path: str | None = None
    topic: str | None = None

    def selects(self, path: str, topic: str) -> bool:
        """Return whether a request is one of the selection."""
        return self.path in {None, path} and self.topic in {None, topic} and self.action.concerns(path, topic)

    def covers(self, other: HTTPRule) -> bool:
        """Return whether this rule answers each request that ``other`` selects."""
        if not self.action.is_last or isinstance(other.action, CloseOnAccept):
            return False
        return self.path in {None, other.path} and self.topic in {None, other.topic}


class HTTPFault(CountedRule[HTTPRule]):
    """A rule of a server, for ``with``: it is removed at the end."""

    def applies(self, path: str, topic: str) -> bool:
        """Return whether the rule applies to the next request, and count it."""
        return self.rule.selects(path, topic) and self.is_hit()


class HTTPFaults(CountedRules[HTTPFault]):
    """The rules of one server.

    Args:
        paths: the paths that it answers.
        topics: its requests have topics.
        seed: of the probabilities.
    """

    def __init__(self, paths: Collection[str], *, topics: bool, seed: int = 0) -> None:
        super().__init__(seed)
        self._paths = paths
        self._topics = topics

    def slow(self, seconds: Seconds, **when: Unpack[When]) -> HTTPFault:
        """Answer later, by a time of the server's clock.

        Raises:
            OptionError: a value is not allowed; so for all faults.
        """
        return self.add("slow", Delay(take_seconds("seconds", seconds)), **when)

    def status(self, status: int, body: bytes | None = None, **when: Unpack[When]) -> HTTPFault:
        """Answer with this status, and with NSQ's document for it or with ``body``."""
        if type(status) is not int or not STATUS_MIN <= status <= STATUS_MAX:
            raise OptionError(f"status is {status!r}; allowed is an int from {STATUS_MIN} to {STATUS_MAX}")
        return self.add("status", Answer(status, body), **when)

    def malformed(self, body: bytes = MALFORMED, **when: Unpack[When]) -> HTTPFault:
        """Answer with this body and the status of success."""
        if not isinstance(body, bytes):
            raise OptionError(f"body is {body!r}; allowed are bytes")
        return self.add("malformed", Answer(None, body), **when)

    def reset(self, **when: Unpack[When]) -> HTTPFault:
        """Reset the connection when a request has come, without an answer."""
        return self.add("reset", Reset(), **when)

    def silence(self, **when: Unpack[When]) -> HTTPFault:
        """Never answer; the connection remains open."""
        return self.add("silence", Silence(), **when)

    def close_on_accept(self, **limits: Unpack[Limits]) -> HTTPFault:
        """Accept connections, and close each at once; a server that is stopped refuses them."""
        return self.add("close_on_accept", CloseOnAccept(), **limits)

    def add(self, fault: str, action: Action, **when: Unpack[When]) -> HTTPFault:
        """Add a rule with any action, and return it; ``fault`` is its name in errors and reports."""
        rule = make_options(HTTPRule, {**when, "fault": fault, "action": action})
        if rule.path is not None and rule.path not in self._paths:
            known = ", ".join(self._paths)
            raise OptionError(f"path is {rule.path!r}, which matches no request; allowed is one of {known}")
        if rule.topic is not None:
            if not self._topics:
                raise OptionError(f"topic is {rule.topic!r}, and requests of this server have none; allowed is None")
            encode_topic(rule.topic)
        return self._put(HTTPFault, rule)

    def closes_on_accept(self) -> bool:
        """Return True if a new connection is to be closed."""
        return any(fault.is_hit() for fault in self._active() if isinstance(fault.rule.action, CloseOnAccept))

    def plan(self, path: str, topic: str) -> list[Action]:
        """Return the actions for a request, in the order of the rules."""
        planned: list[Action] = []
        for fault in self._active():
            action = fault.rule.action
            if not isinstance(action, CloseOnAccept) and fault.applies(path, topic):
                planned.append(action)
                if action.is_last:
                    break
        return planned

    def _active(self) -> list[HTTPFault]:
        return [*self.active.values()]
