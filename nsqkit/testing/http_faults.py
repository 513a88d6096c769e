"""The faults of an HTTP server: rules that apply to its answers.

A rule counts requests, and ``plan`` returns the actions for a request, which ``nsqkit.testing.http_front`` performs.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from itertools import count
from types import TracebackType
from typing import ClassVar, Final, Self, TypedDict, Unpack

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.checks import take_seconds
from nsqkit.options.durations import Seconds
from nsqkit.wire.names import encode_topic

STATUS_MIN: Final = 200
STATUS_MAX: Final = 599

MALFORMED: Final = b'{"producers":[{"broadcast_address":'
"""The body of ``malformed`` by default: JSON that ends too early."""


class Which(TypedDict, total=False):
    """The requests to which a rule applies; by default all.

    Attributes:
        path: only those of this path: ``/lookup``.
        times: how often the rule applies; None for any number.
        after: the number of matching requests that pass before.
        probability: of each match, above 0 and up to 1.
    """

    path: str | None
    times: int | None
    after: int
    probability: float


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


@attrs.define(eq=False)
class HTTPFault:
    """A rule; ``remove`` or the end of a ``with`` removes it.

    Attributes:
        count: how often it has applied.
    """

    action: Action
    path: str | None
    topic: str | None
    times: int | None
    after: int
    probability: float
    _number: int
    _faults: HTTPFaults
    count: int = 0
    _match_count: int = 0

    def remove(self) -> None:
        """Apply the rule no more; a second call has no effect."""
        self._faults.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def applies(self, path: str, topic: str) -> bool:
        """Count a request, and return True if the rule applies to it."""
        if self.path not in {None, path} or self.topic not in {None, topic} or not self.action.concerns(path, topic):
            return False
        if self.times is not None and self.count >= self.times:
            return False
        self._match_count += 1
        if self._match_count <= self.after or (self.probability < 1 and self._draw() >= self.probability):
            return False
        self.count += 1
        return True

    def _draw(self) -> float:
        digest = blake2b(f"{self._faults.seed} {self._number} {self._match_count}".encode(), digest_size=7).digest()
        return int.from_bytes(digest) / (1 << 56)

    @property
    def is_always(self) -> bool:
        """True if it applies to each request of its path and topic."""
        return self.times is None and not self.after and self.probability == 1

    def covers(self, other: HTTPFault) -> bool:
        """Return True if each request to which ``other`` could apply is answered by this one."""
        return (
            self.action.is_last
            and self.is_always
            and self.path in {None, other.path}
            and self.topic in {None, other.topic}
        )


class HTTPFaults:
    """The rules of one server; a test adds them in any thread.

    Args:
        paths: the paths that it answers.
        topics: its requests have topics.
        seed: of the probabilities; the same seed gives the same result for the same requests.
    """

    def __init__(self, paths: Collection[str], *, topics: bool, seed: int = 0) -> None:
        self.seed = seed
        self._paths = paths
        self._topics = topics
        self._numbers = count(1)
        self._rules: tuple[HTTPFault, ...] = ()  # replaced, since the server reads it in another thread

    def slow(self, seconds: Seconds, **when: Unpack[When]) -> HTTPFault:
        """Answer later, by a time of the server's clock.

        Raises:
            OptionError: a value is not allowed; so for all faults.
        """
        return self.add(Delay(take_seconds("seconds", seconds)), **when)

    def status(self, status: int, body: bytes | None = None, **when: Unpack[When]) -> HTTPFault:
        """Answer with this status, and with NSQ's document for it or with ``body``."""
        if type(status) is not int or not STATUS_MIN <= status <= STATUS_MAX:
            raise OptionError(f"status is {status!r}; allowed is an int from {STATUS_MIN} to {STATUS_MAX}")
        return self.add(Answer(status, body), **when)

    def malformed(self, body: bytes = MALFORMED, **when: Unpack[When]) -> HTTPFault:
        """Answer with this body and the status of success."""
        if not isinstance(body, bytes):
            raise OptionError(f"body is {body!r}; allowed are bytes")
        return self.add(Answer(None, body), **when)

    def reset(self, **when: Unpack[When]) -> HTTPFault:
        """Reset the connection when a request has come, without an answer."""
        return self.add(Reset(), **when)

    def silence(self, **when: Unpack[When]) -> HTTPFault:
        """Never answer; the connection remains open."""
        return self.add(Silence(), **when)

    def close_on_accept(self, *, times: int | None = None, after: int = 0, probability: float = 1.0) -> HTTPFault:
        """Accept connections, and close each at once; a server that is stopped refuses them."""
        return self.add(CloseOnAccept(), times=times, after=after, probability=probability)

    def add(
        self,
        action: Action,
        *,
        path: str | None = None,
        topic: str | None = None,
        times: int | None = None,
        after: int = 0,
        probability: float = 1.0,
    ) -> HTTPFault:
        """Add a rule with any action, and return it."""
        if path is not None and path not in self._paths:
            raise OptionError(f"path is {path!r}, which matches no request; allowed is one of {', '.join(self._paths)}")
        if topic is not None:
            if not self._topics:
                raise OptionError(f"topic is {topic!r}, and requests of this server have no topic; allowed is None")
            encode_topic(topic)
        if times is not None and (type(times) is not int or times < 1):
            raise OptionError(f"times is {times!r}; allowed is None or an int of at least 1")
        if type(after) is not int or after < 0:
            raise OptionError(f"after is {after!r}; allowed is an int of at least 0")
        if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 < probability <= 1:
            raise OptionError(f"probability is {probability!r}; allowed is a number above 0 and up to 1")
        rule = HTTPFault(action, path, topic, times, after, float(probability), next(self._numbers), self)
        for other in self._rules:
            if other.covers(rule):
                raise OptionError(f"{other.action} answers each of these requests already, so {action} never would")
        self._rules += (rule,)
        return rule

    def remove(self, rule: HTTPFault) -> None:
        """Remove a rule, if it is here."""
        self._rules = tuple(other for other in self._rules if other is not rule)

    def clear(self) -> None:
        """Remove all rules."""
        self._rules = ()

    def closes_on_accept(self) -> bool:
        """Return True if a new connection is to be closed."""
        return any(rule.applies("", "") for rule in self._rules if isinstance(rule.action, CloseOnAccept))

    def plan(self, path: str, topic: str) -> list[Action]:
        """Return the actions for a request, in the order of the rules."""
        actions: list[Action] = []
        for rule in self._rules:
            if not isinstance(rule.action, CloseOnAccept) and rule.applies(path, topic):
                actions.append(rule.action)
                if rule.action.is_last:
                    break
        return actions
