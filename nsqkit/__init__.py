"""nsqkit: NSQ from Python, for applications, tests, operators and pipelines.

The names are imported when they are first used: the command line does not wait for the clients, and a test suite
that only has nsqkit installed does not wait for anything.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqkit.admin import LookupdAdmin, NsqdAdmin
    from nsqkit.client.settings import load_options, load_settings
    from nsqkit.consumer import BlockingConsumer, BlockingMessage, Consumer, ConsumerOptions, Message
    from nsqkit.errors import BrokerError, Closed, NSQError, OptionError, ProtocolError, TransportError
    from nsqkit.producer import BlockingProducer, HTTPProducer, Producer, ProducerOptions

__version__ = "0.1.0"

__all__ = [
    "BlockingConsumer",
    "BlockingMessage",
    "BlockingProducer",
    "BrokerError",
    "Closed",
    "Consumer",
    "ConsumerOptions",
    "HTTPProducer",
    "LookupdAdmin",
    "Message",
    "NSQError",
    "NsqdAdmin",
    "OptionError",
    "Producer",
    "ProducerOptions",
    "ProtocolError",
    "TransportError",
    "__version__",
    "load_options",
    "load_settings",
]

_HOMES = {
    "nsqkit.admin": ("LookupdAdmin", "NsqdAdmin"),
    "nsqkit.client.settings": ("load_options", "load_settings"),
    "nsqkit.consumer": ("BlockingConsumer", "BlockingMessage", "Consumer", "ConsumerOptions", "Message"),
    "nsqkit.producer": ("BlockingProducer", "HTTPProducer", "Producer", "ProducerOptions"),
    "nsqkit.errors": ("BrokerError", "Closed", "NSQError", "OptionError", "ProtocolError", "TransportError"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            value: object = getattr(import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'nsqkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
