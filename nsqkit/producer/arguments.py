"""The arguments of a publish: checked, and converted to bytes.

Everything that nsqd would refuse is refused here, before anything is sent, with the value and the allowed values in
the error. nsqd closes the connection over such arguments, and other publishes in flight are lost with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from nsqkit.client.serializers import EncodedBody
from nsqkit.errors import OptionError
from nsqkit.options.checks import check_addresses, take_seconds
from nsqkit.options.durations import Seconds
from nsqkit.wire.commands import batch_size, equal_batch_size
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    from nsqkit.client.serializers import Serializer

Bytes: TypeAlias = "bytes | bytearray | memoryview"

TIMEOUT_MAX = 3600.0
"""The longest timeout of a publish, in seconds."""

known_topic_name = lru_cache(maxsize=1024)(encode_topic)
"""As ``topic_name``, but raises TypeError for a value that cannot be hashed."""


def topic_name(topic: str) -> bytes:
    """Return the topic's name as bytes; raise OptionError if it is not valid."""
    try:
        return known_topic_name(topic)
    except TypeError:  # it cannot be hashed, so it is no str
        return encode_topic(topic)


class Bodies:
    """Makes and checks the bodies of one producer; without a serializer they are bytes."""

    def __init__(self, serializer: Serializer[Any, Any] | None, *, max_msg_size: int, max_body_size: int) -> None:
        self._encode = None if serializer is None else serializer.encode
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size

    def take(self, body: Any, name: str = "body") -> bytes:
        """Return the bytes of one body; raise OptionError if it is empty or too large, or not bytes."""
        data = body if self._encode is None or isinstance(body, EncodedBody) else self._encode(body)
        if isinstance(data, bytearray | memoryview):
            data = bytes(data)
        if not isinstance(data, bytes):
            raise OptionError(f"{name} is a {type(data).__name__}; allowed is bytes")
        if not 0 < len(data) <= self._max_msg_size:
            raise OptionError(f"{name} has {len(data)} bytes; allowed are 1 to max_msg_size, {self._max_msg_size}")
        return data

    def take_all(self, bodies: Sequence[Any]) -> Sequence[bytes]:
        """Return the bytes of the bodies of one command; raise OptionError if they are no list, none, or too large."""
        if isinstance(bodies, bytes | bytearray | memoryview | str) or not isinstance(bodies, Sequence) or not bodies:
            raise OptionError(f"bodies is {bodies!r:.100}; allowed is a list of at least one bytes")
        # The types and sizes are checked all at once, and one by one only to find a wrong one.
        plain = self._encode is None and set(map(type, bodies)) == {bytes}
        lengths = set(map(len, bodies)) if plain else {0}
        if not min(lengths) or max(lengths) > self._max_msg_size:
            bodies = [self.take(body, f"bodies[{n}]") for n, body in enumerate(bodies)]
            lengths = set(map(len, bodies))
        # Their exact size is needed only if as many bodies of the largest size would be too large.
        size = equal_batch_size(len(bodies), max(lengths))
        if size > self._max_body_size and (size := batch_size(bodies)) > self._max_body_size:
            raise OptionError(
                f"{len(bodies)} bodies are {size} bytes on the wire; allowed are max_body_size, {self._max_body_size}"
            )
        return bodies


def encode_key(key: str | Bytes | None) -> bytes | None:
    """Return a key as bytes, None for None; raise OptionError if it is neither a str nor bytes."""
    if key is None:
        return None
    if isinstance(key, str):
        return key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytearray | memoryview):
        return bytes(key)
    if not isinstance(key, bytes):
        raise OptionError(f"key is {key!r:.100}; allowed is a str or bytes")
    return key


def delay_ms(delay: Seconds, most: float) -> int:
    """Return a delay in whole milliseconds; raise OptionError if it is not a time from 0 to ``most`` seconds."""
    return round(take_seconds("delay", delay, most) * 1000)


def unite_addresses(addresses: Sequence[str], listed: object, name: str) -> tuple[str, ...]:
    """Return the addresses given as arguments and those given as a list called ``name``, each once.

    Raises:
        OptionError: one is not an address, or there is none.
    """
    or_url = "_http_" in name
    given = check_addresses(addresses, name, or_url=or_url), check_addresses(listed, name, or_url=or_url)
    united = tuple(dict.fromkeys([*given[0], *given[1]]))
    if not united:
        raise OptionError(f"{name} is empty; allowed is one address or more")
    return united
