"""AUTH's answer: who the auth server says a client is, and how much it may do.

The rule it guards: the answer tells of the grant and never of the secret. What the grant itself is, and where it
comes from, is the broker's affair (``nsqkit.broker.core.session.auth``).

How to read it: one value, and its JSON document in both directions.
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from nsqkit.errors import ProtocolError
from nsqkit.wire.documents import INT64, Kind, read_object


@attrs.frozen(kw_only=True)
class AuthAnswer:
    """What a broker answers to AUTH.

    Attributes:
        identity: who the auth server says the client is.
        identity_url: where to read more of it.
        permission_count: how many authorizations it has.
    """

    identity: str = ""
    identity_url: str = ""
    permission_count: int = 0


_KINDS: Final[dict[str, Kind]] = {"identity": str, "identity_url": str, "permission_count": INT64}


def encode_answer(answer: AuthAnswer) -> bytes:
    """Return the JSON document that answers AUTH."""
    document = json.dumps(attrs.asdict(answer), separators=(",", ":"), ensure_ascii=False)
    return document.encode("utf-8", "replace")


def decode_answer(payload: bytes) -> AuthAnswer:
    """Return the broker's answer to AUTH.

    Raises:
        ProtocolError: not a JSON object, or a value of another type than the field's.
    """
    try:
        return AuthAnswer(**read_object(payload, _KINDS))
    except ValueError as error:
        raise ProtocolError(f"the answer to AUTH cannot be understood: {payload[:200]!r}") from error
