"""The answer of an auth server, and the checks of commands against it.

An answer is valid as a whole or not at all (nsqd, internal/auth/authorizations.go). An unknown permission, or a pattern
that cannot be used, makes the whole answer invalid, so that no client is allowed a part of a grant.

An answer is ``{"ttl": 60, "identity": …, "identity_url": …, "authorizations": [{"topic": pattern,
"channels": [pattern, …], "permissions": ["subscribe", "publish"]}, …]}``; ``decode_auth_state`` turns it into an
``AuthState``. Patterns are Go's regular expressions and match anywhere in a name, unless they contain ``^`` and ``$``.
RE2 has the same syntax and, as Go's, searches in time linear in the length of the name. Its Python package,
google-re2, is imported when the first pattern is compiled.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, TypeAlias

import attrs

from nsqkit.errors import ProtocolError
from nsqkit.wire.documents import INT64, FieldType, read_object
from nsqkit.wire.names import quote

__all__ = ["AuthEntry", "AuthState", "Pattern", "decode_auth_state"]

PERMISSIONS: Final = ("subscribe", "publish")

PATTERN_SIZE_MAX: Final = 4096
"""Bytes of one pattern. RE2 holds the interpreter while it compiles one, for at most 0.1 s at this size."""

PATTERNS_SIZE_MAX: Final = 64 * 1024
"""Bytes of all patterns of an answer together."""

INSTRUCTIONS_MAX: Final = 100_000
"""Instructions that all patterns of an answer may compile to, of some 16 bytes each; ``^orders$`` has 11."""

PATTERN_MEMORY_MAX: Final = 256 * 1024
"""Bytes that RE2 may use for one pattern; a pattern that needs more is refused."""

PATTERN_SHOWN_MAX: Final = 100
"""Bytes of a pattern that an error contains."""

ANSWERS_KEPT_MAX: Final = 1000
"""Topics and channels whose answer is kept, so that patterns are not searched for each message."""

_NS_PER_S: Final = 1_000_000_000
_STATE_KINDS: Final[dict[str, FieldType]] = {
    "ttl": INT64,
    "identity": str,
    "identity_url": str,
    "authorizations": list,
}
_AUTHORIZATION_KINDS: Final[dict[str, type]] = {"topic": str, "channels": list, "permissions": list}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


Pattern: TypeAlias = Any
"""A compiled regular expression of RE2, whose package has no types."""


@attrs.frozen
class AuthEntry:
    """One entry of a grant: permissions for the topics and channels that match."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    def is_allowed(self, topic: bytes, channel: bytes) -> bool:
        return (
            ("subscribe" if channel else "publish") in self.permissions
            and bool(self.topic.search(topic))
            and any(pattern.search(channel) for pattern in self.channels)
        )


@attrs.frozen(kw_only=True)
class AuthState:
    """The grant of a client.

    Attributes:
        identity: the auth server's name of the client.
        identity_url: a URL with more about the client.
        authorizations: the entries; there may be none.
        expires_ns: the end of the grant, ns since the Unix epoch.
    """

    identity: str
    identity_url: str
    authorizations: tuple[AuthEntry, ...]
    expires_ns: int
    _answers: dict[tuple[bytes, bytes], bool] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    def is_allowed(self, topic: bytes, channel: bytes) -> bool:
        """Return whether the client may subscribe to ``channel``, or publish to ``topic`` where that is empty.

        One authorization has to allow all of it. To publish, one of its channel patterns must match the empty name,
        as ``.*`` does: nsqd requires it, and ``[]`` or ``["^c$"]`` allow no publishing.
        """
        key = (topic, channel)
        answer = self._answers.get(key)
        if answer is None:
            answer = any(entry.is_allowed(topic, channel) for entry in self.authorizations)
            if len(self._answers) >= ANSWERS_KEPT_MAX:
                self._answers.clear()
            self._answers[key] = answer
        return answer


def decode_auth_state(body: bytes, now_ns: int) -> AuthState:
    """Return the grant in the answer of an auth server, which is read as nsqd reads it; its ``ttl`` seconds begin now.

    Raises:
        ProtocolError: not such a document, an unknown permission, a pattern that RE2 refuses, patterns over one of
            the limits above, or a ``ttl`` below 1. The text names the pattern.
    """
    try:
        fields = read_object(body, _STATE_KINDS)
        compiler = _Compiler()
        authorizations = tuple(_authorization(item, compiler) for item in fields.get("authorizations", ()))
    except ValueError as error:
        raise ProtocolError(f"the auth server's answer cannot be used: {error}") from error
    ttl = fields.get("ttl", 0)
    if ttl <= 0:
        raise ProtocolError(f"the auth server's answer cannot be used: invalid TTL {ttl} (must be >0)")
    return AuthState(
        identity=fields.get("identity", ""),
        identity_url=fields.get("identity_url", ""),
        authorizations=authorizations,
        expires_ns=now_ns + ttl * _NS_PER_S,
    )


def _authorization(value: object, compiler: _Compiler) -> AuthEntry:
    fields = _fields(value)
    permissions = _strings(fields.get("permissions", []), "permissions")
    for permission in permissions:
        if permission not in PERMISSIONS:
            raise ValueError(f"unknown permission {_show(permission)}; known are {' and '.join(PERMISSIONS)}")
    topic = fields.get("topic", "")
    assert isinstance(topic, str)
    channels = _strings(fields.get("channels", []), "channels")
    return AuthEntry(
        compiler.compile("topic", topic),
        tuple(compiler.compile("channel", channel) for channel in channels),
        frozenset(permissions),
    )


def _fields(value: object) -> dict[str, object]:
    """Return the known fields of an object inside the document, which ``read_object`` gives as a tuple of pairs."""
    if not isinstance(value, tuple | None):
        raise ValueError("an authorization is not an object")
    fields = {}
    for key, content in value or ():
        kind = _AUTHORIZATION_KINDS.get(key.lower())
        if kind is not None and content is not None:
            if type(content) is not kind:
                raise ValueError(f"{key.lower()} of an authorization is not a {kind.__name__}")
            fields[key.lower()] = content
    return fields


def _strings(value: object, what: str) -> list[str]:
    assert isinstance(value, list)
    for item in value:
        if not isinstance(item, str | None):
            raise ValueError(f"one of the {what} is not a str")
    return [item or "" for item in value]


class _Compiler:
    """Compiles the patterns of one answer, within the limits above."""

    def __init__(self) -> None:
        self._size = 0
        self._instruction_count = 0

    def compile(self, what: str, text: str) -> Pattern:
        """Return the pattern; raise ValueError, with the pattern in its text, if it cannot be used."""
        try:
            return self._compile(text)
        except ValueError as error:
            raise ValueError(f"unable to compile {what} {_show(text)}: {error}") from error

    def _compile(self, text: str) -> Pattern:
        size = len(text.encode("utf-8", "surrogatepass"))
        self._size += size
        if size > PATTERN_SIZE_MAX:
            raise ValueError(f"it has {size} bytes, allowed are {PATTERN_SIZE_MAX}")
        if self._size > PATTERNS_SIZE_MAX:
            raise ValueError(f"the patterns up to this one have {self._size} bytes, allowed are {PATTERNS_SIZE_MAX}")
        pattern = compile_pattern(text)
        self._instruction_count += pattern.programsize
        if self._instruction_count > INSTRUCTIONS_MAX:
            raise ValueError(
                f"the patterns up to this one have {self._instruction_count} instructions, "
                f"allowed are {INSTRUCTIONS_MAX}"
            )
        return pattern


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> Pattern:
    """Return a pattern, or raise ValueError with RE2's reason; kept, since auth servers repeat the same patterns."""
    import re2  # takes a few milliseconds, and only a broker with auth servers needs it

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_MAX
    options.log_errors = False
    try:
        # Go replaces bytes that are not UTF-8 when it reads the document.
        pattern: Pattern = re2.compile(_SURROGATE.sub("\ufffd", text), options)
    except re2.error as error:
        raise ValueError(error.args[0].decode("utf-8", "replace")) from error
    return pattern


def _show(text: str) -> str:
    raw = text.encode("utf-8", "replace")
    return quote(raw[:PATTERN_SHOWN_MAX]) + ("…" if len(raw) > PATTERN_SHOWN_MAX else "")
