"""The attributes of an operation: OpenTelemetry's names for messaging, and NSQ's values for them.

An attribute of a metric has at most as many values as there are topics, channels, nsqds and kinds of errors. Attributes
of one message are on its span only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from nsqkit.errors import BrokerError, Closed, NotConnected, OptionError, WouldWait
from nsqkit.transport.address import is_socket_path, split_address

BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
BODY_SIZE: Final = "messaging.message.body.size"
DESTINATION: Final = "messaging.destination.name"
ENVELOPE_SIZE: Final = "messaging.message.envelope.size"
ERROR_TYPE: Final = "error.type"
MESSAGE_ID: Final = "messaging.message.id"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
SUBSCRIPTION: Final = "messaging.destination.subscription.name"
SYSTEM: Final = "messaging.system"

ATTEMPTS: Final = "messaging.nsq.message.attempts"
"""Deliveries of a message so far; the conventions reserve ``messaging.nsq`` for NSQ."""

NEVER_SENT: Final = (Closed, NotConnected, OptionError, WouldWait)
"""Errors of a publish that has not reached an nsqd."""

Attributes = dict[str, str | int]


def operation_attributes(
    name: str, kind: str, topic: str, channel: str | None = None, nsqd_address: str | None = None
) -> Attributes:
    """Return the common attributes of the spans and metrics of an operation.

    The kind is its type in the conventions, ``send`` or ``process``. A consumer has a channel, which is the
    conventions' subscription; the address is None if it is unknown.
    """
    attributes: Attributes = {SYSTEM: "nsq", OPERATION_NAME: name, OPERATION_TYPE: kind, DESTINATION: topic}
    if channel is not None:
        attributes[SUBSCRIPTION] = channel
    if nsqd_address is not None:
        attributes.update(server_attributes(nsqd_address))
    return attributes


@lru_cache(maxsize=1024)
def server_attributes(nsqd_address: str) -> Attributes:
    """Return the address of an nsqd as attributes; a Unix socket has no port."""
    if is_socket_path(nsqd_address):
        return {SERVER_ADDRESS: nsqd_address}
    host, port = split_address(nsqd_address)
    return {SERVER_ADDRESS: host, SERVER_PORT: port}


def error_type(error: BaseException) -> str:
    """Return the type of an error: nsqd's code of a BrokerError, else the name of the class."""
    if isinstance(error, BrokerError):
        return error.code
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
