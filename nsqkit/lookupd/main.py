"""The program nsqlookupd: one nsqlookupd, as a service."""

from __future__ import annotations

import logging

from nsqkit.lookupd.options import LookupdOptions
from nsqkit.lookupd.server import Nsqlookupd
from nsqkit.program import service
from nsqkit.program.version import version_line

logger = logging.getLogger("nsqkit.lookupd")


def run(options: LookupdOptions) -> int:
    """Run an nsqlookupd until a signal ends it; return the exit code, 0, or 1 if it could not start."""
    service.start_log(options.log_prefix, lambda: options.log_level)
    logger.info(version_line("nsqlookupd"))
    logger.info(service.loop_line())
    return service.run(Nsqlookupd(options), logger)
