"""All cases, in the order of the report."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Final

from nsqkit.testing.conformance import answering, consuming, handshake, names, publishing, routes, upgrades
from nsqkit.testing.conformance.case import Case

CASES: Final[Sequence[Case]] = tuple(
    chain(
        *(handshake.HANDSHAKE, handshake.IDENTIFY, names.NAMES),
        *(publishing.PUB, publishing.MPUB, publishing.DPUB),
        *(consuming.SUB, consuming.RDY, answering.FIN, answering.REQ, answering.TOUCH, answering.TIMEOUT),
        *(consuming.CLS, consuming.HEARTBEAT, consuming.SAMPLING, upgrades.UPGRADES, routes.HTTP),
    )
)
"""The cases of all subjects."""


def select(pattern: str) -> list[Case]:
    """Return the cases whose name matches a pattern of the shell, such as ``pub/*``, or contains it."""
    return [case for case in CASES if pattern in case.name or fnmatchcase(case.name, pattern)]
