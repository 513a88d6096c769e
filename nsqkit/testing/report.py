"""Sections for the report of a failed test: the last commands and frames, and the faults with their seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqkit.testing.servers import NsqdServer

TAIL: Final = 50
"""Commands and frames of a server in a report."""


def sections(servers: Iterable[NsqdServer]) -> Iterator[tuple[str, str]]:
    """Yield titles and texts for each server: the journal unless it is empty, and the faults if there are any."""
    for server in servers:
        if tail := server.journal.tail(TAIL):
            # xdist cannot send the surrogates by which names that are not UTF-8 are shown.
            text = tail.encode("utf-8", "backslashreplace").decode()
            yield f"nsqd {server.tcp_address}: the last {TAIL} entries of the journal", text
        if faults := [*server.faults.active.values()]:
            lines = [
                f"seed {server.faults.seed}",
                *(f"{fault.rule} has applied {fault.count} times" for fault in faults),
            ]
            yield f"nsqd {server.tcp_address}: faults", "\n".join(lines)
