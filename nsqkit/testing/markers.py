"""The options that markers give to a fixture: ``@pytest.mark.nsqd(msg_timeout="2s")``, also on a class or a module.

The nearest marker wins, for each option. This module is imported by the plugin in every suite, so it imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

MARKERS: Final = {
    "nsqd": "nsqd(**options): options of the fixtures nsqd, nsqd_tls, nsqd_mtls and nsqd_auth; "
    "leaks='allow' switches off the check at the end of the test",
    "nsqlookupd": "nsqlookupd(**options): options of the fixture nsqlookupd",
    "nsq_cluster": "nsq_cluster(nsqds=3, nsqlookupds=2, **options): the size of the fixture nsq_cluster, "
    "and options of its nsqds",
}
"""The description of each marker."""

LEAKS: Final = ("strict", "allow")
"""The values of the option ``leaks``."""


def merged_options(marks: Iterable[pytest.Mark]) -> dict[str, Any]:
    """Return the options of markers of one name, the nearest first.

    Raises:
        ValueError: a marker has values without a name.
    """
    options: dict[str, Any] = {}
    for mark in marks:
        if mark.args:
            values = ", ".join(map(repr, mark.args))
            raise ValueError(f"@pytest.mark.{mark.name}({values}) has values without names; allowed is name=value")
        options = {**mark.kwargs, **options}
    return options


def checks_leaks(options: dict[str, Any]) -> bool:
    """Remove the option ``leaks`` and return True if leaks are to be reported.

    Raises:
        ValueError: it has another value than those of ``LEAKS``.
    """
    value = options.pop("leaks", "strict")
    if value not in LEAKS:
        raise ValueError(f"leaks is {value!r}; allowed is {' or '.join(map(repr, LEAKS))}")
    return bool(value == "strict")


def topic_name(test: str, suffix: str, length_max: int = 64) -> str:
    """Return a valid name of a topic: the name of the test, shortened, and a suffix that makes it unique."""
    allowed = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in test)
    return f"{allowed[: length_max - len(suffix) - 1]}-{suffix}"
