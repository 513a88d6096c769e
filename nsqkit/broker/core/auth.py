"""What an auth server has granted to a client: its answer, and the questions that are asked of it.

The rule it guards: an answer is taken whole or not at all (nsqd, internal/auth/authorizations.go). A permission that is
unknown or a pattern that is none spoils all of it, so that nobody goes by half of what was meant.

How to read it: the answer is ``{"ttl": 60, "identity": …, "identity_url": …, "authorizations": [{"topic": pattern,
"channels": [pattern, …], "permissions": ["subscribe", "publish"]}, …]}``; ``decode_auth_state`` turns it into an
``AuthState``. Patterns are Go's regular expressions and match anywhere in a name, unless they say ``^`` and ``$``.
"""

from __future__ import annotations

from typing import Final

import attrs

from nsqkit.broker.core.pattern import Pattern, compile_pattern
from nsqkit.errors import ProtocolError
from nsqkit.wire.documents import INT64, Kind, read_object

__all__ = ["AuthState", "Authorization", "decode_auth_state"]

PERMISSIONS: Final = ("subscribe", "publish")

ANSWERS_KEPT_MAX: Final = 1000
"""Topics and channels whose answer is kept, so that patterns are not looked for at each message."""

_NS_PER_S: Final = 1_000_000_000
_STATE_KINDS: Final[dict[str, Kind]] = {
    "ttl": INT64,
    "identity": str,
    "identity_url": str,
    "authorizations": list,
}
_AUTHORIZATION_KINDS: Final[dict[str, type]] = {"topic": str, "channels": list, "permissions": list}


@attrs.frozen
class Authorization:
    """One entry of a grant: who may do what on the topics and channels that match."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    def is_allowed(self, topic: bytes, channel: bytes) -> bool:
        """Tell whether this entry allows it; see ``AuthState.is_allowed``."""
        return (
            ("subscribe" if channel else "publish") in self.permissions
            and self.topic.search(topic)
            and any(pattern.search(channel) for pattern in self.channels)
        )


@attrs.frozen(kw_only=True)
class AuthState:
    """What a client may do, and until when that is known.

    Attributes:
        identity: who the auth server says it is.
        identity_url: where to read more of it.
        authorizations: what is allowed; none at all is an answer, too.
        expires_ns: when to ask again, ns since the Unix epoch.
    """

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires_ns: int
    _answers: dict[tuple[bytes, bytes], bool] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    @property
    def permission_count(self) -> int:
        """How many authorizations there are; the name is that of the answer to AUTH."""
        return len(self.authorizations)

    def is_expired(self, now_ns: int) -> bool:
        """Tell whether the auth server has to be asked again."""
        return now_ns > self.expires_ns

    def is_allowed(self, topic: bytes, channel: bytes) -> bool:
        """Tell whether the client may subscribe to ``channel``, or publish to ``topic`` where that is empty.

        One authorization has to allow all of it. To publish, one of its channel patterns must match the empty name,
        as ``.*`` does: nsqd asks so, and ``[]`` or ``["^c$"]`` allow no publishing.
        """
        question = (topic, channel)
        answer = self._answers.get(question)
        if answer is None:
            answer = any(entry.is_allowed(topic, channel) for entry in self.authorizations)
            if len(self._answers) >= ANSWERS_KEPT_MAX:
                self._answers.clear()
            self._answers[question] = answer
        return answer


def decode_auth_state(body: bytes, now_ns: int) -> AuthState:
    """Return what an auth server has answered.

    Args:
        body: its JSON document, read as nsqd reads it.
        now_ns: when it came; its ``ttl`` seconds begin then.

    Raises:
        ProtocolError: not such a document, an unknown permission, a pattern that Go refuses, or a ``ttl`` below 1.
    """
    try:
        fields = read_object(body, _STATE_KINDS)
        authorizations = tuple(map(_authorization, fields.get("authorizations", ())))
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


def _authorization(value: object) -> Authorization:
    fields = _fields(value)
    permissions = _strings(fields.get("permissions", []), "permissions")
    for permission in permissions:
        if permission not in PERMISSIONS:
            raise ValueError(f"unknown permission {permission!r}; known are {' and '.join(PERMISSIONS)}")
    topic = fields.get("topic", "")
    assert isinstance(topic, str)
    channels = _strings(fields.get("channels", []), "channels")
    return Authorization(
        _pattern("topic", topic),
        tuple(_pattern("channel", channel) for channel in channels),
        frozenset(permissions),
    )


def _fields(value: object) -> dict[str, object]:
    """Return the known fields of an object inside the document, which ``read_object`` gives as a tuple of pairs."""
    if not isinstance(value, tuple | None):
        raise ValueError(f"{value!r} is no authorization")
    fields = {}
    for key, content in value or ():
        kind = _AUTHORIZATION_KINDS.get(key.lower())
        if kind is not None and content is not None:
            if type(content) is not kind:
                raise ValueError(f"{key.lower()} is {content!r}")
            fields[key.lower()] = content
    return fields


def _strings(value: object, what: str) -> list[str]:
    assert isinstance(value, list)
    for item in value:
        if not isinstance(item, str | None):
            raise ValueError(f"{item!r} stands among the {what}")
    return [item or "" for item in value]


def _pattern(what: str, text: str) -> Pattern:
    try:
        return compile_pattern(text)
    except ValueError as error:
        raise ValueError(f"unable to compile {what} {text!r}: {error}") from error
