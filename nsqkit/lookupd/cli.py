"""The command ``nsqlookupd``.

Only the modules that are needed to accept a connection are imported before the service runs.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final

from nsqkit.lookupd.options import OPTIONS, LookupdOptions
from nsqkit.program.command import COMMAND_FLAGS, Command


def _host_defaults() -> dict[str, Any]:
    return {"broadcast_address": socket.gethostname()}


def _run(options: LookupdOptions) -> int:
    from nsqkit.lookupd.main import run

    return run(options)


COMMAND: Final = Command(
    name="nsqlookupd",
    options=OPTIONS,
    make=LookupdOptions,
    host_defaults=_host_defaults,
    run=_run,
    flags={name: flag for name, flag in COMMAND_FLAGS.items() if name != "worker_id"},
)


def main(words: Sequence[str]) -> int:
    """Run the command line after ``nsqlookupd`` and return its exit code."""
    return COMMAND.main(words)
