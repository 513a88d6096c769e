"""The HTTP answers of nsqd and nsqlookupd, decoded for their clients.

Before version 1.0 the daemons put every answer into an envelope,
``{"status_code": 200, "status_txt": "OK", "data": …}``, in which they also refused. Both forms are accepted.
"""

from __future__ import annotations

import json
from typing import Any, Final

SHOWN_LENGTH_MAX: Final = 200
"""Characters of an answer that are quoted in an error."""


class Refusal(Exception):
    """An envelope with another status than 200; the arguments are that status and the message."""


def decode_document(body: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer.

    Raises:
        Refusal: it is the envelope of a refusal.
        ValueError: it is not a JSON object; the text quotes its beginning.
    """
    document = _decode_json(body)
    if isinstance(document, dict) and "status_code" in document and "data" in document:
        status = document["status_code"]
        if status != 200:
            raise Refusal(status if isinstance(status, int) else 500, read_message(body))
        document = document["data"]
    if not isinstance(document, dict):
        raise ValueError(f"the answer is no JSON object: {_shorten(body)!r}")
    return document


def read_message(body: bytes) -> str:
    """Return the message of a refusal, such as ``TOPIC_NOT_FOUND``; without one, the beginning of the answer."""
    document = _decode_json(body)
    if isinstance(document, dict):
        for key in ("message", "status_txt"):
            if isinstance(message := document.get(key), str):
                return message[:SHOWN_LENGTH_MAX]
    return _shorten(body)


def _decode_json(body: bytes) -> object:
    """Return a JSON value; None for invalid JSON."""
    try:
        value: object = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value


def _shorten(body: bytes) -> str:
    return body[:SHOWN_LENGTH_MAX].decode("utf-8", "replace").strip()
