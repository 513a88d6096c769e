r"""The syntax of Go's regular expressions: from a pattern's text to its nodes.

The rule it guards: a pattern is taken or refused as Go takes or refuses it (regexp/syntax, RE2). Python's ``re`` does
not: it knows lookaround, backreferences, possessive repeats and ``\Z``, and does not know ``\z``, ``\Q…\E``, ``\pN``,
``[[:alpha:]]`` or flags in the middle.

What is matched are names of topics and channels: ASCII without newlines, or nothing. So a set of characters is a
number of 128 bits, and the flags ``m``, ``s`` and ``U`` change nothing. Two differences remain: Go refuses unknown
scripts in ``\p{…}``, here each capitalized word is taken for a script without ASCII characters; and groups nest up to
100 deep instead of 1000.

How to read it: sets, then the nodes, then ``_Parser``, which reads from left to right; ``parse_pattern`` is at the end.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import attrs

__all__ = ["WORD", "Assertion", "Chars", "Choice", "Node", "Repeat", "Sequence", "parse_pattern"]

NESTING_MAX: Final = 100
"""How deep groups may stand in each other."""

REPEAT_MAX: Final = 1000
"""The greatest number in ``x{n,m}``, and the greatest product of such numbers in each other; as in Go."""


# ---- sets of characters ------------------------------------------------------------------------------------------


def _mask(chars: Iterable[str]) -> int:
    return sum({1 << ord(char) for char in chars})


_ASCII: Final = [chr(point) for point in range(128)]
_ALL: Final = (1 << 128) - 1
_DIGIT: Final = _mask("0123456789")
_LOWER: Final = _mask("abcdefghijklmnopqrstuvwxyz")
_UPPER: Final = _LOWER >> 32
WORD: Final = _DIGIT | _LOWER | _UPPER | _mask("_")
_GRAPH: Final = _mask(map(chr, range(0x21, 0x7F)))

_PERL_SETS: Final = {"d": _DIGIT, "s": _mask("\t\n\f\r "), "w": WORD}
_POSIX_SETS: Final = {
    "alnum": _DIGIT | _LOWER | _UPPER,
    "alpha": _LOWER | _UPPER,
    "ascii": _ALL,
    "blank": _mask("\t "),
    "cntrl": _mask(map(chr, [*range(0x20), 0x7F])),
    "digit": _DIGIT,
    "graph": _GRAPH,
    "lower": _LOWER,
    "print": _GRAPH | _mask(" "),
    "punct": _GRAPH & ~(_DIGIT | _LOWER | _UPPER),
    "space": _mask("\t\n\v\f\r "),
    "upper": _UPPER,
    "word": WORD,
    "xdigit": _mask("0123456789abcdefABCDEF"),
}
_CATEGORY = re.compile("C[cfos]?|L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?")
_SCRIPT = re.compile("[A-Z][a-z]{2,}(?:_[A-Z][a-z]+)*")
# The only characters outside ASCII that are an ASCII letter in another case: the long s and the sign of the kelvin.
_OTHER_CASE: Final = {"\u017f": _mask("sS"), "\u212a": _mask("kK")}


def _fold(mask: int) -> int:
    """Return the characters of ``mask`` in both cases."""
    return mask | (mask & _UPPER) << 32 | (mask & _LOWER) >> 32


def _range_mask(low: str, high: str, *, fold: bool) -> int:
    end = min(ord(high), 127) + 1
    mask = (1 << end) - (1 << ord(low)) if ord(low) < end else 0
    if not fold:
        return mask
    return _fold(mask) | sum(letters for char, letters in _OTHER_CASE.items() if low <= char <= high)


def _unicode_mask(name: str) -> int | None:
    if name == "Any":
        return _ALL
    if _CATEGORY.fullmatch(name):
        return _mask(char for char in _ASCII if unicodedata.category(char).startswith(name))
    if name in ("Latin", "Common"):
        letters = _LOWER | _UPPER
        return letters if name == "Latin" else _ALL & ~letters
    return 0 if _SCRIPT.fullmatch(name) else None


# ---- what a pattern is made of -------------------------------------------------------------------------------------


@attrs.frozen
class Chars:
    """One character of a set."""

    mask: int


@attrs.frozen
class Assertion:
    """A place: ``A`` the beginning, ``z`` the end, ``b`` a word's boundary, ``B`` none."""

    kind: str


@attrs.frozen
class Sequence:
    parts: list[Node]


@attrs.frozen
class Choice:
    parts: list[Node]


@attrs.frozen
class Repeat:
    part: Node
    low: int
    high: int | None  # None for any number
    counted: bool  # written as {n,m}


Node: TypeAlias = Chars | Assertion | Sequence | Choice | Repeat


@attrs.define
class _Group:
    """A group while it is read; the whole pattern is one, too."""

    fold_outside: bool
    done: list[Node] = attrs.Factory(list)
    parts: list[Node] = attrs.Factory(list)

    def next_choice(self) -> None:
        self.done.append(Sequence(self.parts))
        self.parts = []

    def node(self) -> Node:
        self.next_choice()
        return Choice(self.done) if len(self.done) > 1 else self.done[0]


_FLAGS = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?([:)])")
_GROUP_NAME = re.compile(r"\(\?P<([0-9A-Za-z_]+)>")
_REPEAT = re.compile(r"\{(0|[1-9][0-9]*)(?:(,)(0|[1-9][0-9]*)?)?\}")
_POSIX_CLASS = re.compile(r"\[:(.*?):\]", re.DOTALL)
_UNICODE_CLASS = re.compile(r"\\([pP])(?:\{(\^?)([^}]*)\}|([^{]))", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:([\x00-/:-@\[-`{-\x7f])|(0[0-7]{0,2}|[1-7][0-7]{1,2})"
    r"|x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]+)\}|([afnrtv]))"
)
_CONTROLS: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SIMPLE_REPEATS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class _Parser:
    """Reads a pattern from left to right, in the order in which Go looks at things.

    Raises:
        ValueError: the pattern is refused.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._fold = False
        self._repeated = False  # the last thing read was a repeat
        self._groups = [_Group(False)]
        self._names: set[str] = set()

    def parse(self) -> Node:
        while self._at < len(self._text):
            was_repeated, self._repeated = self._repeated, False
            char = self._text[self._at]
            if char in _SIMPLE_REPEATS:
                self._at += 1
                low, high = _SIMPLE_REPEATS[char]
                self._repeat(low, high, counted=False, again=was_repeated)
            elif char == "{" and (match := self._take(_REPEAT)):
                self._count(match, again=was_repeated)
            else:
                _READERS.get(char, _Parser._literal)(self)
        if len(self._groups) > 1:
            raise ValueError("missing closing )")
        return self._groups[0].node()

    def _take(self, what: re.Pattern[str]) -> re.Match[str] | None:
        match = what.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _peek(self, offset: int = 0) -> str:
        return self._text[self._at + offset : self._at + offset + 1]

    def _add(self, node: Node) -> None:
        self._groups[-1].parts.append(node)

    def _add_char(self, char: str) -> None:
        self._add(Chars(_range_mask(char, char, fold=self._fold)))

    def _literal(self) -> None:
        self._add_char(self._text[self._at])
        self._at += 1

    def _any(self) -> None:
        self._at += 1
        self._add(Chars(_ALL))

    def _begin(self) -> None:
        self._at += 1
        self._add(Assertion("A"))

    def _end(self) -> None:
        self._at += 1
        self._add(Assertion("z"))

    # ---- repeats ----

    def _count(self, match: re.Match[str], *, again: bool) -> None:
        # Beyond four digits the number itself is of no interest.
        low = int(match[1][:5])
        high = low if match[2] is None else None if match[3] is None else int(match[3][:5])
        if max(low, high or 0) > REPEAT_MAX or (high is not None and low > high):
            raise ValueError(f"invalid repeat count: {match[0][:20]}")
        self._repeat(low, high, counted=True, again=again)

    def _repeat(self, low: int, high: int | None, *, counted: bool, again: bool) -> None:
        if self._peek() == "?":  # the shortest match is wanted; for us there is one or there is none
            self._at += 1
        if again:
            raise ValueError(f"invalid nested repetition operator before position {self._at}")
        parts = self._groups[-1].parts
        if not parts:
            raise ValueError(f"missing argument to repetition operator before position {self._at}")
        node = Repeat(parts[-1], low, high, counted)
        if counted and max(low, high or 0) > 1 and not _is_small(node, REPEAT_MAX):
            raise ValueError(f"invalid repeat count: repeats of repeats make more than {REPEAT_MAX}")
        parts[-1] = node
        self._repeated = True

    # ---- groups ----

    def _choice(self) -> None:
        self._at += 1
        self._groups[-1].next_choice()

    def _open(self) -> None:
        flags = None
        if not self._text.startswith("(?", self._at):
            self._at += 1
        elif match := self._take(_GROUP_NAME):
            if match[1] in self._names:
                raise ValueError(f"duplicate capture group name: {match[1]}")
            self._names.add(match[1])
        elif flags := self._take(_FLAGS):
            pass
        else:
            raise ValueError(f"invalid or unsupported Perl syntax: {self._text[self._at :][:5]}")
        if flags is None or flags[3] == ":":
            if len(self._groups) > NESTING_MAX:
                raise ValueError(f"groups nest more than {NESTING_MAX} deep")
            self._groups.append(_Group(self._fold))
        if flags is not None:
            self._fold = (self._fold or "i" in flags[1]) and "i" not in (flags[2] or "")

    def _close(self) -> None:
        self._at += 1
        if len(self._groups) == 1:
            raise ValueError("unexpected )")
        group = self._groups.pop()
        self._fold = group.fold_outside
        self._add(group.node())

    # ---- escapes and classes ----

    def _escape(self) -> None:
        letter = self._peek(1)
        if letter and letter in "AzbB":
            self._at += 2
            self._add(Assertion(letter))
        elif letter == "Q":
            literal, _, _ = self._text[self._at + 2 :].partition(r"\E")
            for char in literal:
                self._add_char(char)
            self._at += len(r"\Q" + literal + r"\E")
        elif (mask := self._named_set()) is not None:
            self._add(Chars(mask))
        else:
            self._add_char(self._escaped_char())

    def _named_set(self) -> int | None:
        r"""Read ``\d``, ``\pL`` and their like."""
        letter = self._peek(1)
        if letter.lower() in _PERL_SETS:
            self._at += 2
            return self._signed(_PERL_SETS[letter.lower()], negative=letter.isupper())
        if letter not in ("p", "P"):
            return None
        begin = self._at
        match = self._take(_UNICODE_CLASS)
        mask = _unicode_mask(match[3] or match[4] or "") if match else None
        if match is None or mask is None:
            raise ValueError(f"invalid character class range: {self._text[begin:][:20]}")
        return self._signed(mask, negative=(letter == "P") ^ bool(match[2]))

    def _signed(self, mask: int, *, negative: bool) -> int:
        mask = _fold(mask) if self._fold else mask
        return _ALL & ~mask if negative else mask

    def _escaped_char(self) -> str:
        match = self._take(_ESCAPE)
        if match is None:
            if self._at + 1 == len(self._text):
                raise ValueError("trailing backslash at end of expression")
            raise ValueError(f"invalid escape sequence: {self._text[self._at :][:2]}")
        if match[1]:
            return match[1]
        if match[5]:
            return _CONTROLS[match[5]]
        point = int(match[2], 8) if match[2] else int(match[3] or match[4], 16)
        if point > 0x10FFFF:
            raise ValueError(f"invalid escape sequence: {match[0][:20]}")
        return chr(point)

    def _class(self) -> None:
        begin = self._at
        negative = self._text.startswith("[^", begin)
        self._at += 2 if negative else 1
        mask = 0
        first = True
        while first or not self._text.startswith("]", self._at):
            first = False
            if self._at >= len(self._text):
                raise ValueError(f"missing closing ]: {self._text[begin:][:20]}")
            mask |= self._class_item()
        self._at += 1
        self._add(Chars(_ALL & ~mask if negative else mask))

    def _class_item(self) -> int:
        if match := self._take(_POSIX_CLASS):
            name = match[1].removeprefix("^")
            if name not in _POSIX_SETS:
                raise ValueError(f"invalid character class range: {match[0][:20]}")
            return self._signed(_POSIX_SETS[name], negative=name != match[1])
        if self._text[self._at] == "\\" and (mask := self._named_set()) is not None:
            return mask
        low = high = self._class_char()
        if self._peek() == "-" and self._peek(1) not in ("", "]"):
            self._at += 1
            high = self._class_char()
            if high < low:
                raise ValueError(f"invalid character class range: {low}-{high}")
        return _range_mask(low, high, fold=self._fold)

    def _class_char(self) -> str:
        if self._text[self._at] == "\\":
            return self._escaped_char()
        self._at += 1
        return self._text[self._at - 1]


_READERS: Final[dict[str, Callable[[_Parser], None]]] = {
    ".": _Parser._any,
    "^": _Parser._begin,
    "$": _Parser._end,
    "|": _Parser._choice,
    "(": _Parser._open,
    ")": _Parser._close,
    "[": _Parser._class,
    "\\": _Parser._escape,
}


def _is_small(node: Node, limit: int) -> bool:
    """Tell whether counted repeats in each other come to at most ``limit``."""
    if isinstance(node, Repeat):
        if node.counted:
            if node.high == 0:
                return True
            count = node.low if node.high is None else node.high
            if count > limit:
                return False
            limit //= max(count, 1)
        return _is_small(node.part, limit)
    return not isinstance(node, Sequence | Choice) or all(_is_small(part, limit) for part in node.parts)


def parse_pattern(text: str) -> Node:
    """Return what ``text`` stands for.

    Raises:
        ValueError: Go would refuse it; the text says why.
    """
    return _Parser(text).parse()
