"""The command ``nsqd``.

The rule it guards: only what is needed to accept a connection is imported before the broker runs.

How to read it: ``COMMAND`` says what nsqd is to ``nsqkit.program.command``, which does the rest.
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


def _version_line() -> str:
    from nsqkit.broker.version import version_line

    return version_line()


def _run(options: BrokerOptions) -> int:
    from nsqkit.broker.main import run

    return run(options)


COMMAND: Final = Command(
    name="nsqd",
    options=OPTIONS,
    make=BrokerOptions,
    host_defaults=_host_defaults,
    version_line=_version_line,
    run=_run,
)


def main(words: Sequence[str]) -> int:
    """Run the command and return its exit code.

    Args:
        words: the command line after ``nsqd``.
    """
    return COMMAND.main(words)
