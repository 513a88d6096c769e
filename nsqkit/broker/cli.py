"""The command ``nsqd``.

Only the modules that are needed to accept a connection are imported before the broker runs.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final

from nsqkit.broker.core.options import OPTIONS, BrokerOptions, default_node_id
from nsqkit.program.command import Command


def _host_defaults() -> dict[str, Any]:
    hostname = socket.gethostname()
    return {"node_id": default_node_id(hostname), "broadcast_address": hostname}


def _run(options: BrokerOptions) -> int:
    from nsqkit.broker.main import run

    return run(options)


COMMAND: Final = Command(
    name="nsqd",
    options=OPTIONS,
    make=BrokerOptions,
    host_defaults=_host_defaults,
    run=_run,
)


def main(words: Sequence[str]) -> int:
    """Run the command line after ``nsqd`` and return its exit code."""
    return COMMAND.main(words)
