"""nsqkit: NSQ from Python, for applications, tests, operators and pipelines.

A name is imported when it is first used, so that the command line does not load the clients, and ``import nsqkit`` is
fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqkit.admin import LookupdAdmin, NsqdAdmin
    from nsqkit.client.serializers import JSON, MSGPACK, RAW, TEXT, EncodedBody, Serializer, typed_json, typed_msgpack
    from nsqkit.consumer import BlockingConsumer, BlockingMessage, Consumer, ConsumerOptions, Message
    from nsqkit.consumer.dead_letter import DeadLetter
    from nsqkit.errors import (
        AuthDisabled,
        AuthError,
        AuthFailed,
        AuthFirst,
        BadBody,
        BadChannel,
        BadMessage,
        BadProtocol,
        BadTopic,
        BrokerError,
        Closed,
        ConnectionLost,
        ConnectTimeout,
        DeferredPublishFailed,
        FinishFailed,
        HeartbeatTimeout,
        IdentifyFailed,
        InvalidCommand,
        MessageError,
        MultiPublishFailed,
        NegotiationFailed,
        NotConnected,
        NSQError,
        OptionError,
        ProtocolError,
        PublishFailed,
        PublishTimeout,
        RequestFailed,
        RequestRefused,
        RequeueFailed,
        SubscribeFailed,
        TouchFailed,
        TransportError,
        Unauthorized,
        WouldWait,
        WriteTimeout,
        WrongServer,
    )
    from nsqkit.options.settings import load_options, load_settings
    from nsqkit.producer import BlockingProducer, HTTPProducer, Producer, ProducerOptions

__version__ = "0.1.0"

__all__ = [
    "JSON",
    "MSGPACK",
    "RAW",
    "TEXT",
    "AuthDisabled",
    "AuthError",
    "AuthFailed",
    "AuthFirst",
    "BadBody",
    "BadChannel",
    "BadMessage",
    "BadProtocol",
    "BadTopic",
    "BlockingConsumer",
    "BlockingMessage",
    "BlockingProducer",
    "BrokerError",
    "Closed",
    "ConnectTimeout",
    "ConnectionLost",
    "Consumer",
    "ConsumerOptions",
    "DeadLetter",
    "DeferredPublishFailed",
    "EncodedBody",
    "FinishFailed",
    "HTTPProducer",
    "HeartbeatTimeout",
    "IdentifyFailed",
    "InvalidCommand",
    "LookupdAdmin",
    "Message",
    "MessageError",
    "MultiPublishFailed",
    "NSQError",
    "NegotiationFailed",
    "NotConnected",
    "NsqdAdmin",
    "OptionError",
    "Producer",
    "ProducerOptions",
    "ProtocolError",
    "PublishFailed",
    "PublishTimeout",
    "RequestFailed",
    "RequestRefused",
    "RequeueFailed",
    "Serializer",
    "SubscribeFailed",
    "TouchFailed",
    "TransportError",
    "Unauthorized",
    "WouldWait",
    "WriteTimeout",
    "WrongServer",
    "__version__",
    "load_options",
    "load_settings",
    "typed_json",
    "typed_msgpack",
]

_MODULES = {
    "nsqkit.admin": ("LookupdAdmin", "NsqdAdmin"),
    "nsqkit.client.serializers": (
        *("JSON", "MSGPACK", "RAW", "TEXT"),
        "EncodedBody",
        "Serializer",
        "typed_json",
        "typed_msgpack",
    ),
    "nsqkit.options.settings": ("load_options", "load_settings"),
    "nsqkit.consumer": ("BlockingConsumer", "BlockingMessage", "Consumer", "ConsumerOptions", "Message"),
    "nsqkit.consumer.dead_letter": ("DeadLetter",),
    "nsqkit.producer": ("BlockingProducer", "HTTPProducer", "Producer", "ProducerOptions"),
}
"""The modules of the names; names that are not here are in ``nsqkit.errors``."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'nsqkit' has no attribute {name!r}")
    module = next((module for module, names in _MODULES.items() if name in names), "nsqkit.errors")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
