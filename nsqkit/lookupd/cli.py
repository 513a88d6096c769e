"""The command ``nsqlookupd``: one nsqlookupd, as a service.

The service is imported when it is to run, so that the command line is read, and ``--help`` printed, without it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import Any, Final

from nsqkit.lookupd.options import OPTIONS, LookupdOptions
from nsqkit.program.command import COMMAND_FLAGS, Command

logger = logging.getLogger("nsqkit.lookupd")


def _host_defaults() -> dict[str, Any]:
    return {"broadcast_address": socket.gethostname()}


def _run(options: LookupdOptions) -> int:
    from nsqkit.lookupd.server import Nsqlookupd
    from nsqkit.program import service
    from nsqkit.program.version import version_line

    service.start_log(options.log_prefix, lambda: options.log_level)
    logger.info(version_line("nsqlookupd"))
    logger.info(service.loop_line())
    return service.run(Nsqlookupd(options), logger)


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
