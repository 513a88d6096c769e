"""The command ``nsqd``: one broker, as a service.

The broker is imported when it is to run, so that the command line is read, and ``--help`` printed, without it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

from nsqkit.broker.core.options import OPTIONS, BrokerOptions, default_node_id
from nsqkit.program.command import Command
from nsqkit.transport.address import is_path, is_socket_path

logger = logging.getLogger("nsqkit.broker")


def _host_defaults() -> dict[str, Any]:
    hostname = socket.gethostname()
    return {"node_id": default_node_id(hostname), "broadcast_address": hostname}


def _run(options: BrokerOptions) -> int:
    from nsqkit.broker.server import Nsqd
    from nsqkit.program import service
    from nsqkit.program.version import version_line

    nsqd = Nsqd(options, data_path=options.data_path or os.curdir)
    service.start_log(options.log_prefix, lambda: nsqd.options.log_level)
    logger.info(version_line("nsqd"))
    logger.info("ID: %d", options.node_id)
    logger.info(service.loop_line())
    for flag, address in (("tcp-address", options.tcp_address), ("http-address", options.http_address)):
        if is_path(address) and not is_socket_path(address):  # as in nsqd, but perhaps a host without a port
            logger.warning(
                "--%s=%s has no port, so it names a Unix socket in the current directory; write HOST:PORT for TCP, "
                "or ./%s for the socket",
                *(flag, address, address),
            )
    return service.run(nsqd, logger)


COMMAND: Final = Command(name="nsqd", options=OPTIONS, make=BrokerOptions, host_defaults=_host_defaults, run=_run)


def main(words: Sequence[str]) -> int:
    """Run the command line after ``nsqd`` and return its exit code."""
    return COMMAND.main(words)
