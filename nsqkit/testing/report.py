"""Sections for the report of a failed test: the last commands and frames, and the faults with their seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from nsqkit.testing.servers import NsqlookupdServer

if TYPE_CHECKING:
    from nsqkit.testing.link.limits import CountedRule
    from nsqkit.testing.servers import NsqdServer

TAIL: Final = 50
"""Commands and frames of a server in a report."""


def sections(servers: Iterable[NsqdServer | NsqlookupdServer]) -> Iterator[tuple[str, str]]:
    """Yield titles and texts: for each nsqd its journal unless that is empty, for each server its faults if any."""
    for server in servers:
        name = f"{server.name} {server.tcp_address}"
        if not isinstance(server, NsqlookupdServer) and (tail := server.journal.tail(TAIL)):
            # xdist cannot send the surrogates by which names that are not UTF-8 are shown.
            text = tail.encode("utf-8", "backslashreplace").decode()
            yield f"{name}: the last {TAIL} entries of the journal", text
        faults: list[CountedRule[Any]] = [*server.faults.active.values()]
        if faults:
            lines = [f"{fault.rule} has applied {fault.count} times" for fault in faults]
            yield f"{name}: faults", "\n".join([f"seed {server.faults.seed}", *lines])
