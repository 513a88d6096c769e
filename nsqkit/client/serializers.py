"""Serializers: conversion between values and the bodies of messages.

Without a serializer a producer accepts bytes only; with one it refuses a value that cannot be encoded, before
anything is sent. A consumer decodes with the same serializer, on demand: a body that cannot be decoded does not end the
connection.

| serializer | values |
|---|---|
| ``RAW`` | bytes, bytearray, memoryview |
| ``TEXT`` | str, as UTF-8 |
| ``JSON`` | the values of JSON: None, bool, numbers, str, lists, and dicts with str as keys |
| ``MSGPACK`` | the values of MessagePack, and dates; needs the extra ``msgspec`` |
| ``typed_json(T)``, ``typed_msgpack(T)`` | values of the type ``T``, which decoding checks; need ``msgspec``, too |
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, Final, Generic, Protocol, TypeVar

from nsqkit.errors import OptionError

__all__ = ["JSON", "MSGPACK", "RAW", "TEXT", "EncodedBody", "Serializer", "typed_json", "typed_msgpack"]

T = TypeVar("T")
V_contra = TypeVar("V_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Serializer(Protocol[V_contra, R_co]):
    """The interface for users' own serializers. Both methods raise a ``ValueError`` for what they cannot convert."""

    def encode(self, value: V_contra, /) -> bytes:
        """Return the body for a value."""

    def decode(self, body: bytes, /) -> R_co:
        """Return the value in a body."""


class EncodedBody(bytes):
    """A body that is published as it is: a producer's serializer does not encode it again."""

    __slots__ = ()


class Raw:
    """Bytes, unchanged."""

    def encode(self, value: bytes | bytearray | memoryview, /) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise _refusal(value, "bytes, bytearray or memoryview")

    def decode(self, body: bytes, /) -> bytes:
        return body

    def __repr__(self) -> str:
        return "RAW"


class Text:
    """Text, as UTF-8."""

    def encode(self, value: str, /) -> bytes:
        """Return the text in UTF-8."""
        if not isinstance(value, str):
            raise _refusal(value, "str")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise _refusal(value, "text without surrogates") from error

    def decode(self, body: bytes, /) -> str:
        """Return the text; raise ValueError if it is not UTF-8."""
        return body.decode()

    def __repr__(self) -> str:
        return "TEXT"


class Json:
    """JSON without spaces, in UTF-8. NaN and infinity are not JSON and are refused."""

    def __init__(self) -> None:
        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._encode = encoder.encode

    def encode(self, value: object, /) -> bytes:
        """Return the value as JSON."""
        try:
            return self._encode(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise _refusal(value, "a value that JSON can represent") from error

    def decode(self, body: bytes, /) -> Any:
        """Return the value; raise ValueError if it is not JSON."""
        return json.loads(body)

    def __repr__(self) -> str:
        return "JSON"


class Typed(Generic[T]):
    """Values of one type, which decoding checks, encoded by msgspec's module ``json`` or ``msgpack``."""

    def __init__(self, module: str, kind: Any, name: str) -> None:
        self._module = module
        self._kind = kind
        self._name = name

    @cached_property
    def _codec(self) -> tuple[Any, Any]:
        try:
            import msgspec
        except ImportError as error:
            raise OptionError(f"{self._name} needs msgspec: pip install 'nsqkit[msgspec]'") from error
        codec = {"json": msgspec.json, "msgpack": msgspec.msgpack}[self._module]
        return codec.Encoder(), codec.Decoder(self._kind)

    def encode(self, value: T, /) -> bytes:
        """Return the value as a body."""
        encoder = self._codec[0]
        try:
            body: bytes = encoder.encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise _refusal(value, f"a value that {self._name} can represent") from error
        return body

    def decode(self, body: bytes, /) -> T:
        """Return the value; raise ValueError if it is no value of that type."""
        value: T = self._codec[1].decode(body)
        return value

    def __repr__(self) -> str:
        return self._name


def typed_json(kind: type[T]) -> Typed[T]:
    """Return a serializer for values of a type (a dataclass, an attrs or msgspec class, …), as JSON."""
    return Typed("json", kind, f"typed_json({kind.__name__})")


def typed_msgpack(kind: type[T]) -> Typed[T]:
    """Return a serializer for values of a type, as MessagePack."""
    return Typed("msgpack", kind, f"typed_msgpack({kind.__name__})")


RAW: Final = Raw()
TEXT: Final = Text()
JSON: Final = Json()
MSGPACK: Final[Typed[Any]] = Typed("msgpack", Any, "MSGPACK")


def _refusal(value: object, allowed: str) -> OptionError:
    return OptionError(f"body is {value!r:.100}; allowed is {allowed}")
