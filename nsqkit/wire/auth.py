"""The answer to AUTH: the identity of a client and the number of its authorizations, never its secret."""

from __future__ import annotations

import json
from typing import Final

import attrs

from nsqkit.errors import ProtocolError
from nsqkit.wire.documents import field_types_of, read_object


@attrs.frozen(kw_only=True)
class AuthAnswer:
    """The answer of a broker to AUTH.

    Attributes:
        identity: the name of the client at the auth server.
        identity_url: a page about it.
        permission_count: the number of its authorizations.
    """

    identity: str = ""
    identity_url: str = ""
    permission_count: int = 0


_FIELD_TYPES: Final = field_types_of(AuthAnswer)


def encode_answer(answer: AuthAnswer) -> bytes:
    document = json.dumps(attrs.asdict(answer), separators=(",", ":"), ensure_ascii=False)
    return document.encode("utf-8", "replace")


def decode_answer(payload: bytes) -> AuthAnswer:
    """Return the answer in a JSON object; raise ProtocolError if it is none, or a value has another type."""
    try:
        return AuthAnswer(**read_object(payload, _FIELD_TYPES))
    except ValueError as error:
        raise ProtocolError(f"the answer to AUTH cannot be understood: {payload[:200]!r}") from error
