"""Every exception nsqkit raises on purpose.

The rule it guards: one root, and the depth of the class you catch is how much you want to know.

    NSQError
    ├── OptionError            an option, a name or an argument is wrong (also a ValueError)
    ├── ProtocolError          the peer broke the protocol: not a frame, a frame too large, …
    ├── BrokerError            the broker answered an error frame: .code .description .fatal
    │   ├── InvalidCommand     E_INVALID          ├── SubscribeFailed     E_SUB_FAILED
    │   ├── BadBody            E_BAD_BODY         ├── PublishFailed       E_PUB_FAILED
    │   ├── BadTopic           E_BAD_TOPIC        ├── MultiPublishFailed  E_MPUB_FAILED
    │   ├── BadChannel         E_BAD_CHANNEL      ├── DeferredPublishFailed E_DPUB_FAILED
    │   ├── BadMessage         E_BAD_MESSAGE      ├── FinishFailed        E_FIN_FAILED    (not fatal)
    │   ├── BadProtocol        E_BAD_PROTOCOL     ├── RequeueFailed       E_REQ_FAILED    (not fatal)
    │   ├── IdentifyFailed     E_IDENTIFY_FAILED  └── TouchFailed         E_TOUCH_FAILED  (not fatal)
    │   └── AuthFirst, AuthDisabled, AuthFailed, AuthError, Unauthorized
    ├── TransportError         the connection: NotConnected, ConnectionLost, ConnectTimeout, HeartbeatTimeout,
    │   │                      WriteTimeout, PublishTimeout
    │   ├── NegotiationFailed  the two ends do not agree on TLS, compression or AUTH
    │   └── RequestFailed      an HTTP request to nsqd, nsqlookupd or an auth server got no usable answer
    │       ├── RequestRefused it got an answer, which was a refusal: .status .message
    │       └── WrongServer    the server does not speak HTTP, or TLS, or has another certificate
    ├── WouldWait              publish_nowait would have had to wait
    ├── MessageError           a message was answered twice
    └── Closed                 the producer, the consumer or the broker was used after it was closed

The broker raises the very BrokerError classes that the client gets: whether an error ends the connection is
a property of the class, in one place (nsqd keeps it the same way, in its two client error types). So is whether an
error is permanent: whether a client that gets it while it connects would get it at every further attempt, too.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AuthDisabled",
    "AuthError",
    "AuthFailed",
    "AuthFirst",
    "BadBody",
    "BadChannel",
    "BadMessage",
    "BadProtocol",
    "BadTopic",
    "BrokerError",
    "Closed",
    "ConnectTimeout",
    "ConnectionLost",
    "DeferredPublishFailed",
    "FinishFailed",
    "HeartbeatTimeout",
    "IdentifyFailed",
    "InvalidCommand",
    "MessageError",
    "MultiPublishFailed",
    "NSQError",
    "NegotiationFailed",
    "NotConnected",
    "OptionError",
    "ProtocolError",
    "PublishFailed",
    "PublishTimeout",
    "RequestFailed",
    "RequestRefused",
    "RequeueFailed",
    "SubscribeFailed",
    "TouchFailed",
    "TransportError",
    "Unauthorized",
    "WouldWait",
    "WriteTimeout",
    "WrongServer",
]


class NSQError(Exception):
    """The root of all errors of nsqkit.

    Attributes:
        permanent: True where connecting again cannot help until an operator changes an option, a certificate or the
            server. It counts for errors of dialling and of the greeting; on a connection that is of use already, the
            same error says nothing of the next one.
    """

    permanent: bool = False


class OptionError(NSQError, ValueError):
    """An option, a name or an argument has a value that cannot be used.

    The text names the option, the value and what is allowed.
    """


class ProtocolError(NSQError):
    """The peer sent bytes that are not the NSQ protocol, or more of them than the limit allows."""

    permanent = True


class MessageError(NSQError):
    """A message was answered a second time."""


class WouldWait(NSQError):
    """``publish_nowait`` found no connection, or no room; nothing was sent."""


class Closed(NSQError):
    """The object was used after it was closed."""


class TransportError(NSQError):
    """Something about the connection, not about what was said on it."""


class NotConnected(TransportError):
    """There is no connection, and none came up in the time allowed."""


class ConnectionLost(TransportError):
    """The connection ended while an answer was awaited; whether the broker acted on it is unknown."""


class ConnectTimeout(TransportError):
    """Dialling or the greeting took longer than ``dial_timeout``."""


class HeartbeatTimeout(TransportError):
    """The peer was silent for longer than ``read_timeout``."""


class WriteTimeout(TransportError):
    """The peer took no byte of what was sent to it for ``write_timeout``."""


class PublishTimeout(TransportError):
    """There was no answer to a publish within its timeout; it may have arrived."""


class NegotiationFailed(TransportError):
    """The two ends do not agree on how to go on: on TLS, on compression, or on whether there is to be AUTH.

    Dialling again helps only once something has been changed: a certificate, an option, the broker.
    """

    permanent = True


class RequestFailed(TransportError):
    """A server that was asked over HTTP gave no answer that could be used; the text says why."""


_TRY_AGAIN = (408, 425, 429)
"""Statuses of HTTP that stand for a time-out or too many requests."""


class RequestRefused(RequestFailed):
    """A server that was asked over HTTP has refused.

    Args:
        asked: what was asked, for the text: the URL without user, password and query.
        status: the status of the answer: ``404``.
        message: the server's word for the reason: ``"TOPIC_NOT_FOUND"``.
    """

    def __init__(self, asked: str, status: int, message: str) -> None:
        super().__init__(asked, status, message)  # all of them, so that it can be pickled
        self.asked = asked
        self.status = status
        self.message = message
        self.permanent = 400 <= status < 500 and status not in _TRY_AGAIN

    def __str__(self) -> str:
        return f"{self.asked}: {self.status} {self.message}"


class WrongServer(RequestFailed):
    """A server that was asked over HTTP is not the right one; the text says which one may be meant.

    It speaks another protocol, or its certificate is not one that is accepted.
    """

    permanent = True


class BrokerError(NSQError):
    """The broker answered with an error frame.

    Attributes:
        code: the ``E_*`` word, for example ``"E_BAD_TOPIC"``.
        description: the text after it; bytes that are not UTF-8 are kept as surrogate escapes.
        fatal: True when nsqd closes the connection after this error.
    """

    code: ClassVar[str] = "E_UNKNOWN"
    fatal: ClassVar[bool] = True

    def __init__(self, description: str = "") -> None:
        super().__init__(description)
        self.description = description

    def __str__(self) -> str:
        return f"{self.code} {self.description}" if self.description else self.code


class InvalidCommand(BrokerError):
    """A command that is unknown, malformed or not allowed in this state."""

    code = "E_INVALID"
    permanent = True


class BadBody(BrokerError):
    """The body of IDENTIFY, AUTH or MPUB is malformed or too large."""

    code = "E_BAD_BODY"
    permanent = True


class BadTopic(BrokerError):
    """The topic name is not valid."""

    code = "E_BAD_TOPIC"
    permanent = True


class BadChannel(BrokerError):
    """The channel name is not valid."""

    code = "E_BAD_CHANNEL"
    permanent = True


class BadMessage(BrokerError):
    """A message's body is empty, too large or cut off."""

    code = "E_BAD_MESSAGE"


class BadProtocol(BrokerError):
    """The connection did not begin with the magic of a protocol that the broker speaks."""

    code = "E_BAD_PROTOCOL"
    permanent = True


class IdentifyFailed(BrokerError):
    """IDENTIFY asked for what cannot be had together."""

    code = "E_IDENTIFY_FAILED"
    permanent = True


class AuthFirst(BrokerError):
    """The broker wants AUTH before this command."""

    code = "E_AUTH_FIRST"
    permanent = True


class AuthDisabled(BrokerError):
    """AUTH was sent to a broker that has no auth server."""

    code = "E_AUTH_DISABLED"
    permanent = True


class AuthFailed(BrokerError):
    """The auth server refused, or could not be asked."""

    code = "E_AUTH_FAILED"
    permanent = True


class AuthError(BrokerError):
    """The AUTH command itself was in error."""

    code = "E_AUTH_ERROR"
    permanent = True


class Unauthorized(BrokerError):
    """The identity may not do this."""

    code = "E_UNAUTHORIZED"
    permanent = True


class SubscribeFailed(BrokerError):
    """The channel has all the consumers it may have."""

    code = "E_SUB_FAILED"


class PublishFailed(BrokerError):
    """The broker could not take the message."""

    code = "E_PUB_FAILED"


class MultiPublishFailed(BrokerError):
    """The broker could not take the messages; none of them was kept."""

    code = "E_MPUB_FAILED"


class DeferredPublishFailed(BrokerError):
    """The broker could not take the deferred message."""

    code = "E_DPUB_FAILED"


class FinishFailed(BrokerError):
    """FIN of a message that is not in flight on this connection (most often it timed out)."""

    code = "E_FIN_FAILED"
    fatal = False


class RequeueFailed(BrokerError):
    """REQ of a message that is not in flight on this connection."""

    code = "E_REQ_FAILED"
    fatal = False


class TouchFailed(BrokerError):
    """TOUCH of a message that is not in flight on this connection."""

    code = "E_TOUCH_FAILED"
    fatal = False
