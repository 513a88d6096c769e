r"""An envelope around a body for the fields of a message, since NSQ's messages have no headers.

    ┌───────────┬──────────────────┬──────────────────────────────┬──────┐
    │ \0NSQCTX1 │ size: 4 bytes    │ {"traceparent": "00-4bf9…",  │ body │
    │  8 bytes  │ most significant │  …}: JSON, str to str, UTF-8 │      │
    │           │ first            │                              │      │
    └───────────┴──────────────────┴──────────────────────────────┴──────┘

A body of any content can be wrapped and unwrapped. Bytes without an envelope, or with a damaged one, are a body. So
consumers may begin to unwrap before producers begin to wrap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

MAGIC: Final = b"\0NSQCTX1"
"""The beginning of an envelope; neither text nor JSON begins so."""

SIZE_END: Final = len(MAGIC) + 4


def wrap(fields: Mapping[str, str], body: bytes) -> bytes:
    """Return a body in an envelope; without fields the body itself, unless it begins like an envelope."""
    if not fields and not body.startswith(MAGIC):
        return body
    head = json.dumps(dict(fields), separators=(",", ":")).encode()
    return b"".join((MAGIC, len(head).to_bytes(4, "big"), head, body))


def unwrap(data: bytes) -> tuple[dict[str, str], bytes]:
    """Return the fields and the body; no fields and ``data`` if it is not an envelope."""
    if not data.startswith(MAGIC) or len(data) < SIZE_END:
        return {}, data
    end = SIZE_END + int.from_bytes(data[len(MAGIC) : SIZE_END], "big")
    if end > len(data):
        return {}, data
    try:
        fields = json.loads(data[SIZE_END:end])
    except (ValueError, RecursionError):
        return {}, data
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        return {}, data
    return fields, data[end:]
