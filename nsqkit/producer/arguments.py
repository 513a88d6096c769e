"""What users publish, checked and turned into what goes on the wire.

The rule it guards: whatever nsqd would refuse is refused here, before anything is sent, by a sentence with the value
and what is allowed. nsqd ends the connection over such things, and with it other publishes on their way.

How to read it: ``Bodies`` is one producer's; the functions are for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from nsqkit.errors import OptionError
from nsqkit.options.checks import check_addresses, take_seconds
from nsqkit.options.durations import Seconds
from nsqkit.wire.commands import batch_size, equal_batch_size
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    from nsqkit.client.serializers import Serializer

Bytes: TypeAlias = "bytes | bytearray | memoryview"

TIMEOUT_MAX = 3600.0
"""Seconds that one publish may be given."""

known_topic_name = lru_cache(maxsize=1024)(encode_topic)
"""As ``topic_name``, but raises TypeError for what cannot be hashed."""


def topic_name(topic: str) -> bytes:
    """Return the topic's name as bytes.

    Raises:
        OptionError: it is none.
    """
    try:
        return known_topic_name(topic)
    except TypeError:  # it cannot be hashed, so it is no str
        return encode_topic(topic)


class Bodies:
    """Makes bodies, and checks them.

    Args:
        serializer: makes bytes of what is published; None if it is bytes.
        max_msg_size: bytes that a body may have.
        max_body_size: bytes that the bodies of one command may have, with what is between them.
    """

    def __init__(
        self, serializer: Serializer[Any, Any] | None, *, max_msg_size: int, max_body_size: int
    ) -> None:
        self._encode = None if serializer is None else serializer.encode
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size

    def take(self, body: Any, name: str = "body") -> bytes:
        """Return the bytes of one body.

        Raises:
            OptionError: it has none, too many, or no such type.
        """
        data = body if self._encode is None else self._encode(body)
        if isinstance(data, bytearray | memoryview):
            data = bytes(data)
        if not isinstance(data, bytes):
            raise OptionError(f"{name} is a {type(data).__name__}; allowed is bytes")
        if not 0 < len(data) <= self._max_msg_size:
            raise OptionError(
                f"{name} has {len(data)} bytes; allowed are 1 to max_msg_size, {self._max_msg_size}"
            )
        return data

    def take_all(self, bodies: Sequence[Any]) -> Sequence[bytes]:
        """Return the bytes of the bodies of one command.

        Raises:
            OptionError: they are no list, or none, or one of them cannot be taken, or all are too much together.
        """
        if (
            isinstance(bodies, bytes | bytearray | memoryview | str)
            or not isinstance(bodies, Sequence)
            or not bodies
        ):
            raise OptionError(f"bodies is {bodies!r:.100}; allowed is a list of at least one bytes")
        # The types and sizes of all at once; which one is wrong is found out only if one is.
        plain = self._encode is None and set(map(type, bodies)) == {bytes}
        lengths = set(map(len, bodies)) if plain else {0}
        if not min(lengths) or max(lengths) > self._max_msg_size:
            bodies = [self.take(body, f"bodies[{n}]") for n, body in enumerate(bodies)]
            lengths = set(map(len, bodies))
        # They are counted one by one only if so many of the longest would be too much.
        size = equal_batch_size(len(bodies), max(lengths))
        if size > self._max_body_size and (size := batch_size(bodies)) > self._max_body_size:
            raise OptionError(
                f"{len(bodies)} bodies are {size} bytes on the wire; allowed are max_body_size, "
                f"{self._max_body_size}"
            )
        return bodies


def encode_key(key: str | Bytes | None) -> bytes | None:
    """Return a key as bytes, None for none.

    Raises:
        OptionError: it is something else.
    """
    if isinstance(key, str):
        return key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytearray | memoryview):
        return bytes(key)
    if key is not None and not isinstance(key, bytes):
        raise OptionError(f"key is {key!r:.100}; allowed is a str or bytes")
    return key


def delay_ms(delay: Seconds, most: float) -> int:
    """Return the delay of a deferred publish in whole milliseconds.

    Raises:
        OptionError: it is no length of time from 0 to ``most`` seconds.
    """
    return round(take_seconds("delay", delay, most) * 1000)


def unite_addresses(addresses: Sequence[str], listed: object, name: str) -> tuple[str, ...]:
    """Return the addresses that are given one by one and those that are given as a list, each once.

    Args:
        addresses: one by one.
        listed: as a list.
        name: of the list.

    Raises:
        OptionError: one that is no address, or there is none.
    """
    or_url = "_http_" in name
    given = check_addresses(addresses, name, or_url=or_url), check_addresses(listed, name, or_url=or_url)
    united = tuple(dict.fromkeys([*given[0], *given[1]]))
    if not united:
        raise OptionError(f"{name} is empty; allowed is one address or more")
    return united
