"""The exceptions of nsqkit, with one root.

::

    NSQError
    ├── OptionError            an option, a name or an argument is wrong (also a ValueError)
    ├── ProtocolError          the peer violated the protocol: not a frame, a frame too large, …
    ├── BrokerError            the broker answered with an error frame: .code .description .fatal
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
    │   ├── NegotiationFailed  client and broker do not agree on TLS, compression or AUTH
    │   └── RequestFailed      an HTTP request to nsqd, nsqlookupd or an auth server got no usable answer
    │       ├── RequestRefused the server refused the request: .status .message
    │       └── WrongServer    the server does not speak HTTP, or TLS, or has another certificate
    ├── WouldWait              publish_nowait cannot publish without waiting
    ├── MessageError           a message was answered twice
    └── Closed                 the producer, the consumer or the broker was used after it was closed

The broker raises the same BrokerError classes as the client. Whether an error ends the connection is a property of the
class (``fatal``), as in nsqd's two types of client errors.
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
        permanent: True if a new connection fails in the same way until an operator changes an option, a certificate or
            the server. It is meaningful only for errors while a client connects.
    """

    permanent: bool = False


class OptionError(NSQError, ValueError):
    """An option, a name or an argument is wrong; the text has its name, the value and the allowed values."""


class ProtocolError(NSQError):
    """The peer sent bytes that are not the NSQ protocol, or more bytes than a limit allows."""

    permanent = True


class MessageError(NSQError):
    """A message was answered a second time."""


class WouldWait(NSQError):
    """``publish_nowait`` was called without a connection, or while too much is unanswered; nothing was sent."""


class Closed(NSQError):
    """The object was used after it was closed."""


class TransportError(NSQError):
    """The connection failed."""


class NotConnected(TransportError):
    """There was no connection within the time allowed."""


class ConnectionLost(TransportError):
    """The connection ended before an answer came; the broker may have executed the command."""


class ConnectTimeout(TransportError):
    """Dialling and the handshake took longer than ``dial_timeout``."""


class HeartbeatTimeout(TransportError):
    """The peer sent nothing for longer than ``read_timeout``."""


class WriteTimeout(TransportError):
    """The peer accepted no byte for ``write_timeout`` although there were bytes to send."""


class PublishTimeout(TransportError):
    """A publish had no answer within its timeout; the message may have arrived."""


class NegotiationFailed(TransportError):
    """Client and broker do not agree on TLS, compression or AUTH."""

    permanent = True


class RequestFailed(TransportError):
    """An HTTP request had no usable answer; the text has the reason."""


_TRY_AGAIN = (408, 425, 429)
"""HTTP statuses for a timeout or too many requests."""


class RequestRefused(RequestFailed):
    """A server refused an HTTP request.

    Args:
        asked: the URL without user, password and query.
        status: the status of the answer, such as 404.
        message: the server's reason, such as ``"TOPIC_NOT_FOUND"``.
    """

    def __init__(self, asked: str, status: int, message: str) -> None:
        super().__init__(asked, status, message)  # all arguments, for pickle
        self.asked = asked
        self.status = status
        self.message = message
        self.permanent = 400 <= status < 500 and status not in _TRY_AGAIN

    def __str__(self) -> str:
        return f"{self.asked}: {self.status} {self.message}"


class WrongServer(RequestFailed):
    """A server speaks another protocol than expected, or its certificate was not accepted."""

    permanent = True


class BrokerError(NSQError):
    """The broker answered with an error frame.

    Attributes:
        code: the ``E_*`` word, such as ``"E_BAD_TOPIC"``.
        description: the text after it; bytes that are not UTF-8 are surrogate escapes.
        fatal: True if nsqd closes the connection after this error.
    """

    code: ClassVar[str] = "E_UNKNOWN"
    fatal: ClassVar[bool] = True

    def __init__(self, description: str = "") -> None:
        super().__init__(description)
        self.description = description

    def __str__(self) -> str:
        return f"{self.code} {self.description}" if self.description else self.code


class InvalidCommand(BrokerError):
    """A command is unknown, malformed or not allowed in this state."""

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
    """The body of a message is empty, too large or incomplete."""

    code = "E_BAD_MESSAGE"


class BadProtocol(BrokerError):
    """The connection did not begin with the magic of a protocol that the broker speaks."""

    code = "E_BAD_PROTOCOL"
    permanent = True


class IdentifyFailed(BrokerError):
    """IDENTIFY requested options that exclude each other, or TLS failed."""

    code = "E_IDENTIFY_FAILED"
    permanent = True


class AuthFirst(BrokerError):
    """The command requires AUTH first."""

    code = "E_AUTH_FIRST"
    permanent = True


class AuthDisabled(BrokerError):
    """AUTH was sent to a broker without auth server."""

    code = "E_AUTH_DISABLED"
    permanent = True


class AuthFailed(BrokerError):
    """The auth server refused the client, or could not be reached."""

    code = "E_AUTH_FAILED"
    permanent = True


class AuthError(BrokerError):
    """The AUTH command was wrong."""

    code = "E_AUTH_ERROR"
    permanent = True


class Unauthorized(BrokerError):
    """The client has no authorization for this command."""

    code = "E_UNAUTHORIZED"
    permanent = True


class SubscribeFailed(BrokerError):
    """The channel has the maximum number of consumers, or could not be created."""

    code = "E_SUB_FAILED"


class PublishFailed(BrokerError):
    """The broker could not store the message."""

    code = "E_PUB_FAILED"


class MultiPublishFailed(BrokerError):
    """The broker could not store the messages; it stored none of them."""

    code = "E_MPUB_FAILED"


class DeferredPublishFailed(BrokerError):
    """The broker could not store the deferred message."""

    code = "E_DPUB_FAILED"


class FinishFailed(BrokerError):
    """FIN was sent for a message that is not in flight on this connection, usually because it timed out."""

    code = "E_FIN_FAILED"
    fatal = False


class RequeueFailed(BrokerError):
    """REQ was sent for a message that is not in flight on this connection."""

    code = "E_REQ_FAILED"
    fatal = False


class TouchFailed(BrokerError):
    """TOUCH was sent for a message that is not in flight on this connection."""

    code = "E_TOUCH_FAILED"
    fatal = False
