"""The program nsqd: one broker, as a service.

How to read it: ``run`` is the program from start to exit.
"""

from __future__ import annotations

import logging
import os

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.broker.version import version_line
from nsqkit.program import service

logger = logging.getLogger("nsqkit.broker")


def run(options: BrokerOptions) -> int:
    """Run a broker until a signal ends it.

    Returns:
        The exit code: 0, or 1 if the broker could not start.
    """
    nsqd = Nsqd(options, data_path=options.data_path or os.curdir, owns_loop=True)
    service.start_log(options.log_prefix, lambda: nsqd.options.log_level)
    logger.info(version_line())
    logger.info("ID: %d", options.node_id)
    logger.info(service.loop_line())
    return service.run(nsqd, logger)
