"""The grant of one client: its secret, the answer of an auth server, and the checks against it.

With auth servers configured, a client can publish and subscribe only with a grant that has not expired (CheckAuth in
nsqd/protocol_v2.go). When the grant has expired, the command waits until an auth server has answered again.

``authenticate`` is AUTH; ``check`` comes before each command that needs a grant. Where one of them returns None or
False, the session requests an answer of an auth server, gives it to ``answer``, and calls the method again.
"""

from __future__ import annotations

from typing import TypeAlias

from nsqkit.broker.core.session.auth import AuthState
from nsqkit.errors import AuthFailed, AuthFirst, InvalidCommand, NSQError, Unauthorized
from nsqkit.wire.auth import AuthAnswer, encode_answer
from nsqkit.wire.names import quote

Answer: TypeAlias = AuthState | NSQError
"""A grant, or the reason why no auth server has given a usable answer."""


class Authorization:
    """The grant of one client.

    Attributes:
        secret: the argument of AUTH.
        state: the last grant; None before that, and after a failure.
        is_requested: a request to the auth servers is under way; set by the session.
    """

    __slots__ = ("_failure", "_is_answered", "is_requested", "secret", "state")

    def __init__(self) -> None:
        self._is_answered = False
        self._failure: NSQError | None = None
        self.is_requested = False
        self.secret = b""
        self.state: AuthState | None = None

    def answer(self, answer: Answer) -> None:
        """Use the answer to the last request."""
        if isinstance(answer, AuthState):
            self.state = answer
        else:
            self.state, self._failure = None, answer
        self._is_answered, self.is_requested = True, False

    def authenticate(self, secret: bytes) -> bytes | None:
        """Return the answer to AUTH, None to query an auth server first; raise BrokerError if it is refused."""
        if not self._is_answered:
            if self.has_grant:
                raise InvalidCommand("AUTH already set")
            self.secret = secret
            return None
        self._is_answered = False
        state = self._known_state()
        if not state.authorizations:
            raise Unauthorized("AUTH no authorizations found")
        return encode_answer(
            AuthAnswer(
                identity=state.identity,
                identity_url=state.identity_url,
                permission_count=len(state.authorizations),
            )
        )

    @property
    def has_grant(self) -> bool:
        """True once something was granted, expired or not."""
        return self.state is not None and bool(self.state.authorizations)

    def check(self, verb: bytes, topic: bytes, channel: bytes, now_ns: int) -> bool:
        """Return True if the client is allowed to do this, False to query an auth server first; a refusal is raised."""
        if not self._is_answered:
            if not self.has_grant:
                raise AuthFirst(f"AUTH required before {verb.decode()}")
            if self.is_expired(now_ns):
                return False
        self._is_answered = False
        if not self._known_state().is_allowed(topic, channel):
            raise Unauthorized(f"AUTH failed for {verb.decode()} on {quote(topic)} {quote(channel)}")
        return True

    def is_expired(self, now_ns: int) -> bool:
        """Return whether the grant has expired."""
        return self.state is not None and now_ns > self.state.expires_ns

    def _known_state(self) -> AuthState:
        if self.state is None:
            # The log shows the reason; the client does not get it.
            raise AuthFailed("AUTH failed") from self._failure
        return self.state
