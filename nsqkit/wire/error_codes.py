"""Error frames: the table of ``E_*`` codes, and their text in both directions.

The rule it guards: a code has one class, and the class says whether the connection survives. The broker looks
up by class (it raises one), the client by code (it receives one); both use this table, made from
``nsqkit.errors``.
"""

from __future__ import annotations

from typing import Final

from nsqkit import errors

BROKER_ERRORS: Final[dict[bytes, type[errors.BrokerError]]] = {
    cls.code.encode(): cls for cls in errors.BrokerError.__subclasses__()
}


def encode_error_text(error: errors.BrokerError) -> bytes:
    """Return the payload of the error frame: the code, a space and the description."""
    return str(error).encode("utf-8", "surrogateescape")


def decode_error_text(payload: bytes) -> errors.BrokerError:
    """Return the exception that an error frame stands for.

    A code that is not in the table gives a plain, fatal ``BrokerError`` that carries the whole text: a client
    must not go on as if nothing had happened because a newer broker says something it does not know.
    """
    code, _, description = payload.partition(b" ")
    cls = BROKER_ERRORS.get(code)
    if cls is None:
        return errors.BrokerError(payload.decode("utf-8", "surrogateescape"))
    return cls(description.decode("utf-8", "surrogateescape"))
