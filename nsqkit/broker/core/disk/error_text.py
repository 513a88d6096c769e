"""The text of an error, as clients and the log get it."""

from __future__ import annotations


def error_text(error: Exception) -> str:
    """Return what went wrong, without the number that ``str`` puts before an ``OSError``."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)
