"""The program nsqd: one broker, as a service."""

from __future__ import annotations

import logging
import os

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.program import service
from nsqkit.program.version import version_line
from nsqkit.transport.address import is_path, is_socket_path

logger = logging.getLogger("nsqkit.broker")


def run(options: BrokerOptions) -> int:
    """Run a broker until a signal ends it; return the exit code, 0, or 1 if the broker could not start."""
    nsqd = Nsqd(options, data_path=options.data_path or os.curdir)
    service.start_log(options.log_prefix, lambda: nsqd.options.log_level)
    logger.info(version_line("nsqd"))
    logger.info("ID: %d", options.node_id)
    logger.info(service.loop_line())
    _warn_of_paths(options)
    return service.run(nsqd, logger)


def _warn_of_paths(options: BrokerOptions) -> None:
    """Warn of addresses that are Unix sockets, as in nsqd, but may be hosts without a port."""
    for flag, address in (("tcp-address", options.tcp_address), ("http-address", options.http_address)):
        if is_path(address) and not is_socket_path(address):
            logger.warning(
                "--%s=%s has no port, so it names a Unix socket in the current directory; write HOST:PORT for TCP, "
                "or ./%s for the socket",
                *(flag, address, address),
            )
