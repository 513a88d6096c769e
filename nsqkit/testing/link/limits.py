"""How often a rule applies, and the rules of one server with their counts.

Rules for items (``nsqkit.testing.link.faults``) and rules for HTTP requests (``nsqkit.testing.http_faults``) share it.
A test adds and removes rules in any thread while the server runs. Random decisions depend on the seed, the rule and the
number of the item or request that it selects, and on nothing else, so the same seed gives the same result.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import count
from typing import Any, Generic, Self, TypeVar

import attrs

from nsqkit.errors import OptionError


def check_count(least: int, *, optional: bool = False) -> Any:
    """Return a validator for a whole number from ``least``, or None if that is allowed."""

    def check(rule: object, field: attrs.Attribute[Any], value: object) -> None:
        if not (optional and value is None) and (not _is_int(value) or value < least):  # type: ignore[operator]
            allowed = ("None or " if optional else "") + f"a number from {least}"
            raise OptionError(f"{field.name} is {value!r}; allowed is {allowed}")

    return check


def _check_probability(rule: object, field: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise OptionError(f"probability is {value!r}; allowed is a number above 0 and up to 1")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@attrs.frozen(kw_only=True)
class LimitedRule:
    """A rule, without its selection and its action.

    Attributes:
        fault: the name of the fault: of the method that adds it.
        times: how often it applies; None for any number.
        after: the number of selected items that are left as they are, before the first one that is not.
        probability: with which it applies to an item, after ``after``; the seed of the faults decides.

    Raises:
        OptionError: a value is not allowed.
    """

    fault: str
    times: int | None = attrs.field(default=None, validator=check_count(1, optional=True))
    after: int = attrs.field(default=0, validator=check_count(0))
    probability: float = attrs.field(default=1.0, validator=_check_probability)

    @property
    def is_lasting(self) -> bool:
        """True if it applies to everything that it selects."""
        return self.times is None and self.after == 0 and self.probability == 1

    def covers(self, other: Any) -> bool:
        """Return whether nothing that ``other`` selects is left to it by this rule."""
        raise NotImplementedError


R = TypeVar("R", bound=LimitedRule)


class CountedRule(Generic[R]):
    """A rule of a server, for ``with``: it is removed at the end.

    Attributes:
        rule: the rule.
        count: how often it has applied.
        is_removed: it was removed; it may also apply no more since it has applied ``times`` times.
    """

    def __init__(self, rule: R, number: int, rules: CountedRules[Any]) -> None:
        self.rule = rule
        self.count = 0
        self.is_removed = False
        self._number = number
        self._rules = rules
        self._selected_count = 0

    def __repr__(self) -> str:
        return f"<Fault {self.rule} number={self._number} count={self.count} seed={self._rules.seed}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Apply the rule no more; do nothing if it was removed."""
        self._rules.remove(self)

    def is_hit(self) -> bool:
        """Count something that the rule selects, and return whether it applies."""
        rule = self.rule
        number, self._selected_count = self._selected_count, self._selected_count + 1
        if number < rule.after or (rule.times is not None and self.count >= rule.times):
            return False
        if rule.probability < 1 and self._draw(number) >= rule.probability:
            return False
        self.count += 1
        if self.count == rule.times:
            self._rules.active.pop(self._number, None)
        return True

    def _draw(self, number: int) -> float:
        digest = blake2b(f"{self._rules.seed} {self._number} {number}".encode(), digest_size=7).digest()
        return int.from_bytes(digest) / (1 << 56)


F = TypeVar("F", bound=CountedRule[Any])


class CountedRules(Generic[F]):
    """The rules of one server.

    Args:
        seed: of all random decisions.

    Attributes:
        seed: the same.
        active: the rules that can still apply, by number in the order of adding.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.active: dict[int, F] = {}  # changed in single steps, since other threads read it
        self._numbers = count(1)
        self._added: dict[int, F] = {}

    def clear(self) -> None:
        """Remove all rules."""
        for fault in [*self._added.values()]:
            self.remove(fault)

    def remove(self, fault: F) -> None:
        """Remove a rule; do nothing if it was removed."""
        fault.is_removed = True
        for number in [number for number, each in [*self._added.items()] if each is fault]:
            self.active.pop(number, None)
            self._added.pop(number, None)

    def _put(self, make: type[F], rule: LimitedRule) -> F:
        """Add and return a rule; raise OptionError if it would never apply."""
        for earlier in [*self.active.values()]:
            if earlier.rule.is_lasting and earlier.rule.covers(rule):
                raise OptionError(
                    f"{rule.fault} would never apply: {earlier.rule.fault} already applies to each item of it"
                )
        number = next(self._numbers)
        fault = self._added[number] = self.active[number] = make(rule, number, self)
        return fault
