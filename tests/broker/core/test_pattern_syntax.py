from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqkit.broker.core.pattern import compile_pattern
from nsqkit.broker.core.pattern_syntax import NESTING_MAX, parse_pattern

ASCII = [chr(point) for point in range(128)]


def members(pattern: str) -> str:
    """Return the characters that a pattern for one character matches."""
    found = compile_pattern(rf"\A(?:{pattern})\z")
    return "".join(char for char in ASCII if found.search(char.encode()))


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", "a"),
        ("[abx-z]", "abxyz"),
        ("[a-]", "-a"),
        ("[-a]", "-a"),
        ("[]a]", "]a"),
        ("[^]a]", "".join(c for c in ASCII if c not in "]a")),
        ("[a^]", "^a"),
        ("[a-c-e]", "-abce"),
        (r"[\]\-a]", "-]a"),
        (r"[+\--/]", "+-./"),
        ("[[a]", "[a"),
        ("[[:a]", ":[a"),
        ("[a&&b~~|]", "&ab|~"),
        (r"\d", DIGITS),
        (r"[^\D]", DIGITS),
        (r"\s", "\t\n\f\r "),
        (r"[[:space:]]", "\t\n\v\f\r "),
        (r"[[:alpha:]]", LETTERS),
        (r"[[:^ascii:]]", ""),
        (
            r"[[:digit:][:punct:]x]",
            "".join(c for c in ASCII if c.isprintable() and not c.isalpha() and c != " ") + "x",
        ),
        (r"\pN", DIGITS),
        (r"\p{Lu}", LETTERS[:26]),
        (r"\P{^Lu}", LETTERS[:26]),
        (r"\p{^L}", "".join(c for c in ASCII if c not in LETTERS)),
        (r"\PL", "".join(c for c in ASCII if c not in LETTERS)),
        (r"[\pN\p{Lu}]", DIGITS + LETTERS[:26]),
        (r"\p{Latin}", LETTERS),
        (r"\P{Common}", LETTERS),
        (r"\p{Greek}", ""),
        (r"\p{Old_Italic}", ""),
        (r"\P{Any}", ""),
        (r"\.", "."),
        (r"\_", "_"),
        (r"\101", "A"),
        (r"\0", "\0"),
        (r"\07", "\a"),
        (r"\x41", "A"),
        (r"\x{00041}", "A"),
        (r"\x{10FFFF}", ""),
        (r"[\x00-\x{10FFFF}]", "".join(ASCII)),
        (r"\a|\f|\n|\r|\t|\v", "\a\t\n\v\f\r"),
        ("\xe9", ""),
        ("[a-\xe9]", "".join(ASCII[97:])),
        ("[\xe0-\xe9]", ""),
        ("(?i)k", "Kk"),
        ("(?i)[j-k]", "JKjk"),
        ("(?i)\u212a", "Kk"),
        ("(?i)\u017f", "Ss"),
        ("(?i)[\u0100-\u0200]", "Ss"),
        (r"(?i)\p{Lu}", LETTERS),
        ("(?i)[[:^lower:]]", "".join(c for c in ASCII if c not in LETTERS)),
        ("(?i:a)|b", "Aab"),
        ("(?i)a|(?-i)b", "Aab"),
        ("(?:(?i)a)|b", "Aab"),
        ("(?i)(?-i:a)|b", "Bab"),
        ("(?sU-im)a", "a"),
        ("(?)a", "a"),
    ],
)
def test_a_set_of_characters(pattern, expected):
    assert members(pattern) == "".join(sorted(expected))


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        (r"\Qa.b+c\E", "a.b+c"),
        (r"\Q(", "("),
        (r"\Qa\Eb", "ab"),
        (r"\Qab\E{2}", "abb"),
        ("a{", "a{"),
        ("a{,2}", "a{,2}"),
        ("a{02}", "a{02}"),
        ("a{1", "a{1"),
        ("}", "}"),
        ("]", "]"),
        ("(?P<name>a)(?P<1>b)", "ab"),
        (r"\Q\Ea", "a"),
    ],
)
def test_what_stands_for_itself(pattern, literal):
    assert compile_pattern(rf"\A(?:{pattern})\z" if r"\Q" not in pattern else f"^{pattern}").search(
        literal.encode()
    )


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("(", r"missing closing \)"),
        ("(a", r"missing closing \)"),
        (")", r"unexpected \)"),
        ("a)", r"unexpected \)"),
        ("[", "missing closing ]"),
        ("[]", "missing closing ]"),
        ("[^]", "missing closing ]"),
        ("[z-a]", "invalid character class range: z-a"),
        (r"[a-\d]", r"invalid escape sequence: \\d"),
        ("[[:foo:]]", "invalid character class range"),
        ("[[:^^digit:]]", "invalid character class range"),
        ("*", "missing argument to repetition operator"),
        ("(*a)", "missing argument to repetition operator"),
        ("a|*", "missing argument to repetition operator"),
        ("(?i)+", "missing argument to repetition operator"),
        ("{2}", "missing argument to repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("a++", "invalid nested repetition operator"),
        ("a*??", "invalid nested repetition operator"),
        ("a{2}{3}", "invalid nested repetition operator"),
        ("a{1001}", r"invalid repeat count: \{1001\}"),
        ("a{1,1001}", "invalid repeat count"),
        ("a{3,2}", "invalid repeat count"),
        ("a{99999999999999999999}", "invalid repeat count"),
        ("(a{100}){11}", "invalid repeat count"),
        ("(a{100,}b?){11}", "invalid repeat count"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?!a)", "invalid or unsupported Perl syntax"),
        ("(?<=a)", "invalid or unsupported Perl syntax"),
        ("(?<n>a)", "invalid or unsupported Perl syntax"),
        ("(?>a)", "invalid or unsupported Perl syntax"),
        ("(?#a)", "invalid or unsupported Perl syntax"),
        ("(?P=n)", "invalid or unsupported Perl syntax"),
        ("(?P<>a)", "invalid or unsupported Perl syntax"),
        ("(?P<a-b>a)", "invalid or unsupported Perl syntax"),
        ("(?x)a", "invalid or unsupported Perl syntax"),
        ("(?i-)a", "invalid or unsupported Perl syntax"),
        ("(?P<n>a)(?P<n>b)", "duplicate capture group name: n"),
        (r"(a)\1", r"invalid escape sequence: \\1"),
        (r"\8", "invalid escape sequence"),
        (r"\q", "invalid escape sequence"),
        (r"\Z", "invalid escape sequence"),
        (r"\C", "invalid escape sequence"),
        (r"\E", "invalid escape sequence"),
        (r"[\b]", "invalid escape sequence"),
        (r"\x4", "invalid escape sequence"),
        (r"\x{}", "invalid escape sequence"),
        (r"\x{110000}", "invalid escape sequence"),
        (r"\p", "invalid character class range"),
        (r"\pA", "invalid character class range"),
        (r"\p^L", "invalid character class range"),
        (r"\p{L", "invalid character class range"),
        (r"\p{}", "invalid character class range"),
        (r"\p{lu}", "invalid character class range"),
        ("\\", "trailing backslash at end of expression"),
        ("(" * 101 + ")" * 101, f"groups nest more than {NESTING_MAX} deep"),
    ],
)
def test_a_pattern_that_go_refuses(pattern, error):
    with pytest.raises(ValueError, match=error):
        parse_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *("a{1000}", "(a{100}){10}", "(a*){1000}", "((a{0}){1000}){1}", "(?:a{0}|b){1000}"),
        *("a*?", "a{2}?", "a*(?i)*", r"a*\Q\E*", r"\b*", "()*", "(|)*", "(" * 100 + ")" * 100),
    ],
)
def test_a_pattern_that_go_takes(pattern):
    parse_pattern(pattern)


_SCRAPS = st.sampled_from(
    [
        *("a", "^", "$", "|", "(", ")", "(?", "(?i", ":", "P<n>", "[", "[^", "]", "-", "[:", "alpha", ":]"),
        *(
            "\\",
            "p",
            "{",
            "}",
            "Lu",
            "Q",
            "E",
            "x",
            "0",
            "9",
            ",",
            "*",
            "+",
            "?",
            "\xe9",
            "\u212a",
            "\n",
            "\ud800",
        ),
    ]
)


@given(st.lists(_SCRAPS).map("".join) | st.text())
@example("[" * 5000)
@example("(?:" * 5000)
@example("(a{0,1}){1,2}" * 200)
def test_any_text_is_taken_or_refused(text):
    try:
        found = compile_pattern(text)
    except ValueError:
        return
    assert found.search(b"topic#ephemeral") in (True, False)
