"""What nsqd and nsqlookupd answer over HTTP, as their clients read it.

The rule it guards: old daemons are understood, too. Before version 1.0 they put every answer into an envelope,
``{"status_code": 200, "status_txt": "OK", "data": …}``; what is inside counts, and a refusal in there is a refusal.

How to read it: ``decode_document`` is for good answers, ``read_message`` for the others.
"""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = ["Refusal", "decode_document", "read_message"]

SHOWN_LENGTH_MAX: Final = 200
"""Characters of an answer that stand in an error."""


class Refusal(Exception):
    """An envelope with another status than 200 in it; its arguments are that status and the message."""


def decode_document(body: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer.

    Raises:
        Refusal: it is the envelope of a refusal.
        ValueError: it is no JSON object; the text shows its beginning.
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
    """Return the daemon's word for the reason of a refusal: ``TOPIC_NOT_FOUND``.

    It is the text of the answer where there is no such word, cut short.
    """
    document = _decode_json(body)
    if isinstance(document, dict):
        for key in ("message", "status_txt"):
            if isinstance(message := document.get(key), str):
                return message[:SHOWN_LENGTH_MAX]
    return _shorten(body)


def _decode_json(body: bytes) -> object:
    """Return a JSON value; None for what is none."""
    try:
        value: object = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value


def _shorten(body: bytes) -> str:
    return body[:SHOWN_LENGTH_MAX].decode("utf-8", "replace").strip()
