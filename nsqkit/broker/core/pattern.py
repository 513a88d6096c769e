"""Looking for a pattern in a name, in a time that the pattern cannot blow up.

The rule it guards: all alternatives are followed at once (Thompson's construction), so a search takes at most as many
steps as the name has characters times the pattern has instructions. With Python's ``re``, a pattern such as
``(a|a)*$`` is busy for as long as the universe exists. A pattern of more than 10,000 instructions, with its repeats
written out, is refused (``\\w{1000}`` has 1000); Go takes larger ones.

How to read it: ``compile_pattern`` → ``_Program`` writes instructions → ``Pattern.search`` follows them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import attrs

from nsqkit.broker.core.pattern_syntax import (
    WORD,
    Assertion,
    Chars,
    Choice,
    Node,
    Repeat,
    Sequence,
    parse_pattern,
)

__all__ = ["Pattern", "compile_pattern"]

INSTRUCTIONS_MAX: Final = 10_000
"""How large a pattern may become when its repeats are written out."""

# CHAR mask: go on with the next instruction after a character of the set. ASSERT kind: go on if it holds here.
# FORK address: go on with the next one and there. JUMP address. FOUND.
_CHAR, _ASSERT, _FORK, _JUMP, _FOUND = range(5)
_KINDS: Final = "AzbB"


class _Program:
    """Writes the instructions of a node.

    Raises:
        ValueError: there are too many of them.
    """

    def __init__(self) -> None:
        self.code: list[tuple[int, int]] = []

    def _emit(self, operation: int, argument: int = 0) -> int:
        if len(self.code) >= INSTRUCTIONS_MAX:
            raise ValueError(f"expression too large: more than {INSTRUCTIONS_MAX} instructions")
        self.code.append((operation, argument))
        return len(self.code) - 1

    def _land(self, *addresses: int) -> None:
        """Have the forks and jumps at these addresses lead to the next instruction."""
        for address in addresses:
            self.code[address] = (self.code[address][0], len(self.code))

    def finish(self) -> None:
        self._emit(_FOUND)

    def write(self, node: Node) -> None:
        if isinstance(node, Chars):
            self._emit(_CHAR, node.mask)
        elif isinstance(node, Assertion):
            self._emit(_ASSERT, _KINDS.index(node.kind))
        elif isinstance(node, Sequence):
            for part in node.parts:
                self.write(part)
        elif isinstance(node, Choice):
            self._write_choice(node)
        else:
            self._write_repeat(node)

    def _write_choice(self, node: Choice) -> None:
        ends = []
        for part in node.parts[:-1]:
            fork = self._emit(_FORK)
            self.write(part)
            ends.append(self._emit(_JUMP))
            self._land(fork)
        self.write(node.parts[-1])
        self._land(*ends)

    def _write_repeat(self, node: Repeat) -> None:
        for _ in range(node.low):
            self.write(node.part)
        if node.high is None:
            fork = self._emit(_FORK)
            self.write(node.part)
            self._emit(_JUMP, fork)
            self._land(fork)
            return
        forks = []
        for _ in range(node.high - node.low):
            forks.append(self._emit(_FORK))
            self.write(node.part)
        self._land(*forks)


@attrs.frozen
class Pattern:
    """A pattern that can be looked for."""

    text: str
    _code: tuple[tuple[int, int], ...] = attrs.field(repr=False, eq=False)

    def search(self, subject: bytes) -> bool:
        """Tell whether the pattern matches anywhere in ``subject``, a name or nothing."""
        ready: list[int] = []
        for position in range(len(subject) + 1):
            alive = self._follow([0, *ready], subject, position)
            if alive is None:
                return True
            if position < len(subject):
                bit = 1 << subject[position]
                ready = [address + 1 for address in alive if self._code[address][1] & bit]
        return False

    def _follow(self, addresses: list[int], subject: bytes, position: int) -> list[int] | None:
        """Return the CHARs that are reached without a character, None for FOUND."""
        code = self._code
        seen = set()
        alive = []
        while addresses:
            address = addresses.pop()
            if address in seen:
                continue
            seen.add(address)
            operation, argument = code[address]
            if operation == _CHAR:
                alive.append(address)
            elif operation == _FOUND:
                return None
            elif operation == _JUMP:
                addresses.append(argument)
            elif operation == _FORK:
                addresses += (argument, address + 1)
            elif _holds(_KINDS[argument], subject, position):
                addresses.append(address + 1)
        return alive


def _holds(kind: str, subject: bytes, position: int) -> bool:
    if kind == "A":
        return position == 0
    if kind == "z":
        return position == len(subject)
    before = position > 0 and bool(WORD >> subject[position - 1] & 1)
    after = position < len(subject) and bool(WORD >> subject[position] & 1)
    return (before != after) == (kind == "b")


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> Pattern:
    """Return a pattern; the same object for the same text, since auth servers repeat themselves.

    Raises:
        ValueError: Go would refuse it, or it is too large; the text says why.
    """
    program = _Program()
    program.write(parse_pattern(text))
    program.finish()
    return Pattern(text, tuple(program.code))
