"""Topic and channel names.

A name has 1 to 64 characters of ``.a-zA-Z0-9_-``, of which ``#ephemeral`` may be the last ones (nsqd,
internal/protocol/names.go). Users write ``str``; below the public API a name is ``bytes``, as on the wire.
"""

from __future__ import annotations

import re

from nsqkit.errors import OptionError

NAME_LENGTH_MAX = 64
EPHEMERAL_SUFFIX = b"#ephemeral"

_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(?:#ephemeral)?")
_GO_ESCAPES = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}


def is_valid_name(name: bytes) -> bool:
    return len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name) is not None


def is_ephemeral(name: bytes) -> bool:
    """Return whether the topic or channel is deleted with its last channel or consumer."""
    return name.endswith(EPHEMERAL_SUFFIX)


def encode_topic(name: str) -> bytes:
    """Return the name as bytes; raise OptionError if it is not valid."""
    return _encode(name, "topic")


def encode_channel(name: str) -> bytes:
    """Return the name as bytes; raise OptionError if it is not valid."""
    return _encode(name, "channel")


def _encode(name: str, kind: str) -> bytes:
    if not isinstance(name, str):
        raise OptionError(f"{kind} name is {name!r}; allowed is a str")
    encoded = name.encode("ascii", "replace")  # the replacement, "?", is not allowed in a name
    if not is_valid_name(encoded):
        raise OptionError(
            f"{kind} name {name!r} is not valid: 1 to {NAME_LENGTH_MAX} characters of . a-z A-Z 0-9 _ - "
            "are allowed, and #ephemeral at the end"
        )
    return encoded


def quote(name: bytes) -> str:
    """Return ``name`` in double quotes as Go's %q prints it; nsqd's errors show wrong names so."""
    out = []
    for char in name.decode("utf-8", "surrogateescape"):
        if char in '"\\':
            out.append("\\" + char)
        elif char in _GO_ESCAPES:
            out.append(_GO_ESCAPES[char])
        elif "\udc80" <= char <= "\udcff":
            out.append(f"\\x{ord(char) - 0xDC00:02x}")
        elif char.isprintable():
            out.append(char)
        else:
            out.append(_escape_unprintable(ord(char)))
    return '"' + "".join(out) + '"'


def _escape_unprintable(point: int) -> str:
    if point < 0x80:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
