"""The program nsqd: one broker, as a service.

The rule it guards: an option that has no effect is named, never ignored.

How to read it: ``run`` is the program from start to exit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from nsqkit.broker.core.options import OPTIONS, BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.broker.version import version_line
from nsqkit.program import service

WITHOUT_EFFECT: Final[Mapping[str, tuple[str, ...]]] = {
    "no nsqlookupd is told of this node": (
        *("lookupd_tcp_addresses", "broadcast_tcp_port", "broadcast_http_port"),
    ),
    "no auth server is asked": (
        *("auth_http_request_method", "http_client_connect_timeout_ns", "http_client_request_timeout_ns"),
    ),
}
"""Options that this version takes and does nothing with, by what it does instead."""

PROTECTION: Final = ("auth_http_addresses",)
"""Options that keep clients out. A broker that cannot do that must not start as if it could."""

logger = logging.getLogger("nsqkit.broker")


def run(options: BrokerOptions) -> int:
    """Run a broker until a signal ends it.

    Returns:
        The exit code: 0, or 1 if the broker could not start.
    """
    nsqd = Nsqd(options, data_path=options.data_path or os.curdir)
    service.start_log(options.log_prefix, lambda: nsqd.options.log_level)
    logger.info(version_line())
    logger.info("ID: %d", options.node_id)
    logger.info(service.loop_line())
    for warning in warnings_for(options):
        logger.warning(warning)
    if refusal := refusal_of(options):
        logger.critical(refusal)
        return service.EXIT_FAILURE
    return service.run(nsqd, logger)


def warnings_for(options: BrokerOptions) -> Iterator[str]:
    """Yield a sentence for each option that is set to another value than its default, and has no effect."""
    defaults = {field.name: field.default for field in attrs.fields(BrokerOptions)}
    for instead, names in WITHOUT_EFFECT.items():
        for name in names:
            if getattr(options, name) != defaults[name]:
                yield f"--{OPTIONS[name].flag} has no effect in this version: {instead}"


def refusal_of(options: BrokerOptions) -> str | None:
    """Return the sentence with which to refuse options that ask for a protection which there is not, else None."""
    defaults = {field.name: field.default for field in attrs.fields(BrokerOptions)}
    for name in PROTECTION:
        if getattr(options, name) != defaults[name]:
            return f"--{OPTIONS[name].flag} asks for a protection that this version does not have"
    return None
