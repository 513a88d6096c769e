"""The text of error frames in both directions, by the table of ``E_*`` codes in ``nsqkit.errors``."""

from __future__ import annotations

from typing import Final

from nsqkit import errors

BROKER_ERRORS: Final[dict[bytes, type[errors.BrokerError]]] = {
    cls.code.encode(): cls for cls in errors.BrokerError.__subclasses__()
}


def encode_error_text(error: errors.BrokerError) -> bytes:
    """Return the payload of the error frame: the code, a space and the description."""
    return str(error).encode("utf-8", "surrogateescape")


def printable_text(text: str) -> str:
    """Return text for a log: bytes that are not UTF-8 become escapes, which every handler can write."""
    return text.encode("utf-8", "backslashreplace").decode()


def decode_error_text(payload: bytes) -> errors.BrokerError:
    """Return the exception for an error frame.

    An unknown code, as of a newer broker, gives a fatal ``BrokerError`` with the whole text.
    """
    code, _, description = payload.partition(b" ")
    cls = BROKER_ERRORS.get(code)
    if cls is None:
        return errors.BrokerError(payload.decode("utf-8", "surrogateescape"))
    return cls(description.decode("utf-8", "surrogateescape"))
