"""nsqkit: NSQ from Python, for applications, tests, operators and pipelines."""

from nsqkit.consumer import Consumer, ConsumerOptions, Message
from nsqkit.errors import *  # noqa: F403
from nsqkit.errors import __all__ as _errors
from nsqkit.producer import Producer, ProducerOptions

__version__ = "0.1.0"

__all__ = ["Consumer", "ConsumerOptions", "Message", "Producer", "ProducerOptions", "__version__", *_errors]
