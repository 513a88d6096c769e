"""The query of a request, for routes.

Of several values of one key the first counts; a missing key is reported in NSQ's words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from nsqkit.http.messages import HTTPError

if TYPE_CHECKING:
    from nsqkit.http.messages import Request

__all__ = ["BOOLEANS", "Query"]

BOOLEANS: Final[Mapping[str, bool]] = {"true": True, "1": True, "false": False, "0": False}
"""The words for a boolean in a query; each route decides what other words mean."""


class Query:
    """The decoded query of a request.

    Raises:
        HTTPError: 400 INVALID_REQUEST, for an invalid query.
    """

    __slots__ = ("_values",)

    def __init__(self, request: Request) -> None:
        self._values = {key: values[0] for key, values in request.query.items()}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> str:
        """Return a value; empty if it is missing."""
        return self._values.get(key, "")

    def name(self, key: str) -> bytes:
        """Return a value as bytes, the type of names below HTTP; empty if it is missing."""
        return self.get(key).encode("utf-8", "surrogateescape")

    def required(self, key: str) -> bytes:
        """Return a value as bytes.

        Raises:
            HTTPError: 400 ``MISSING_ARG_KEY``, the key is missing.
        """
        if key not in self._values:
            raise HTTPError(400, f"MISSING_ARG_{key.upper()}")
        return self.name(key)
