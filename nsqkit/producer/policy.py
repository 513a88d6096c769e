"""Policies: which nsqd of a pool gets the next publish.

A policy gets all nsqds, in the order in which the producer got them, and returns one that is ready, or None. The same
calls with the same random source give the same choices.

| name | the next publish goes to |
|---|---|
| ``round-robin`` | each ready nsqd in turn |
| ``random`` | any ready nsqd, with equal probability |
| ``least-busy`` | the ready nsqd with the fewest publishes without an answer; in turn among equals |
| ``by-key`` | the ready nsqd that ranks highest for the key; without a key, each in turn |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from random import Random

RANKINGS_MAX: Final = 4096
"""Keys whose rankings a policy keeps; others are computed again."""


class Candidate(Protocol):
    """The interface of an nsqd for a policy."""

    @property
    def address(self) -> str: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def outstanding_count(self) -> int: ...


C = TypeVar("C", bound=Candidate)


class Policy(Protocol):
    """The interface of a policy."""

    def choose(self, candidates: Sequence[C], key: bytes | None, avoid: Collection[C] = ()) -> C | None:
        """Return a candidate that is ready and not in ``avoid``; None if there is none.

        The candidates are always the same ones, in the same order.
        """


class RoundRobin:
    def __init__(self) -> None:
        self._next = 0

    def choose(self, candidates: Sequence[C], key: bytes | None, avoid: Collection[C] = ()) -> C | None:
        count = len(candidates)
        for _ in range(count):
            candidate = candidates[self._next % count]
            self._next = (self._next + 1) % count
            if candidate.is_ready and candidate not in avoid:
                return candidate
        return None


class AtRandom:
    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, candidates: Sequence[C], key: bytes | None, avoid: Collection[C] = ()) -> C | None:
        ready = [candidate for candidate in candidates if candidate.is_ready and candidate not in avoid]
        return self._random.choice(ready) if ready else None


class LeastBusy:
    def __init__(self) -> None:
        self._first = 0

    def choose(self, candidates: Sequence[C], key: bytes | None, avoid: Collection[C] = ()) -> C | None:
        # The first among equals wins, and another one is first each time.
        self._first = first = (self._first + 1) % len(candidates)
        turned = (*candidates[first:], *candidates[:first])
        ready = [candidate for candidate in turned if candidate.is_ready and candidate not in avoid]
        return min(ready, key=lambda candidate: candidate.outstanding_count, default=None)


class ByKey:
    """The same one for the same key, as long as it is ready.

    Every nsqd has a rank for every key, by a hash of both (rendezvous hashing). While one is not ready, its keys are
    spread over all others, and the keys of the others stay where they are.
    """

    def __init__(self) -> None:
        self._turns = RoundRobin()
        self._ranking = lru_cache(RANKINGS_MAX)(rank)

    def choose(self, candidates: Sequence[C], key: bytes | None, avoid: Collection[C] = ()) -> C | None:
        if key is None:
            return self._turns.choose(candidates, key, avoid)
        for n in self._ranking(key, tuple([candidate.address for candidate in candidates])):
            if candidates[n].is_ready and candidates[n] not in avoid:
                return candidates[n]
        return None


def rank(key: bytes, addresses: tuple[str, ...]) -> list[int]:
    """Return the positions of the addresses by their rank for ``key``, the highest first."""

    def score(n: int) -> bytes:
        salt = blake2b(addresses[n].encode(), digest_size=16).digest()
        return blake2b(key, digest_size=8, key=salt).digest()

    return sorted(range(len(addresses)), key=score, reverse=True)


POLICIES: Final[dict[str, Callable[[Random], Policy]]] = {
    "round-robin": lambda random: RoundRobin(),
    "random": AtRandom,
    "least-busy": lambda random: LeastBusy(),
    "by-key": lambda random: ByKey(),
}
"""The values of the option ``policy``, each with its class."""
