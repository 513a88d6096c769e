"""What one client may do: its secret, what an auth server has granted for it, and the checks.

The rule it guards: with auth servers configured, nothing is published or subscribed to without a grant that is known
and not expired (nsqd, CheckAuth in nsqd/protocol_v2.go). When the grant has expired, the command waits until the auth
server has been asked again; the client does not notice.

How to read it: ``authenticate`` is AUTH, ``check`` comes before each command that needs a grant; ``answer`` is called
by whoever has asked the auth server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from nsqkit.broker.core.session.auth import AuthState
from nsqkit.broker.core.session.frame_buffer import Wait
from nsqkit.errors import AuthFailed, AuthFirst, InvalidCommand, NSQError, Unauthorized
from nsqkit.wire.auth import AuthAnswer, encode_answer
from nsqkit.wire.names import quote

if TYPE_CHECKING:
    from collections.abc import Callable

Answer: TypeAlias = AuthState | NSQError
"""What an auth server has granted, or the reason why no server has given a usable answer."""


class Authorization:
    """The grant of one client.

    Args:
        ask: called when the auth server is to be asked for ``secret``; ``answer`` is to be called in the end.

    Attributes:
        secret: what the client has sent.
        state: what was granted last; None before that, and after a failure.
    """

    __slots__ = ("_ask", "_failure", "_is_answered", "secret", "state")

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._is_answered = False
        self._failure: NSQError | None = None
        self.secret = b""
        self.state: AuthState | None = None

    def answer(self, answer: Answer) -> None:
        """Take the answer to the last question."""
        if isinstance(answer, AuthState):
            self.state = answer
        else:
            self.state, self._failure = None, answer
        self._is_answered = True

    def authenticate(self, secret: bytes) -> bytes:
        """Return what to answer to AUTH.

        Raises:
            Wait: the auth server has to be asked.
            BrokerError: refused.
        """
        if not self._is_answered:
            if self.has_grant:
                raise InvalidCommand("AUTH already set")
            self.secret = secret
            self._wait_for_answer()
        self._is_answered = False
        state = self._known_state()
        if not state.authorizations:
            raise Unauthorized("AUTH no authorizations found")
        return encode_answer(
            AuthAnswer(
                identity=state.identity,
                identity_url=state.identity_url,
                permission_count=state.permission_count,
            )
        )

    @property
    def has_grant(self) -> bool:
        """True once something was granted, expired or not."""
        return self.state is not None and bool(self.state.authorizations)

    def check(self, verb: bytes, topic: bytes, channel: bytes, now_ns: int) -> None:
        """Return if the client may do this.

        Args:
            verb: PUB, MPUB, DPUB or SUB.
            topic: where to.
            channel: for SUB; otherwise empty.
            now_ns: the time, to know whether the grant has expired.

        Raises:
            Wait: the auth server has to be asked again.
            BrokerError: refused.
        """
        if not self._is_answered:
            if not self.has_grant:
                raise AuthFirst(f"AUTH required before {verb.decode()}")
            if self.is_expired(now_ns):
                self._wait_for_answer()
        self._is_answered = False
        if not self._known_state().is_allowed(topic, channel):
            raise Unauthorized(f"AUTH failed for {verb.decode()} on {quote(topic)} {quote(channel)}")

    def is_expired(self, now_ns: int) -> bool:
        """Tell whether the auth server has to be asked again."""
        return self.state is not None and self.state.is_expired(now_ns)

    def _wait_for_answer(self) -> None:
        self._ask()
        raise Wait

    def _known_state(self) -> AuthState:
        if self.state is None:
            raise AuthFailed(
                "AUTH failed"
            ) from self._failure  # for the log; the client is not told the reason
        return self.state
