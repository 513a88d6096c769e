"""The program nsqd: one broker, a log on stderr, signals.

The rule it guards: who starts nsqd and reads its log, connects to its ports and ends it by a signal can do so here.
When a line says that the broker listens, it does; SIGTERM and SIGINT end it with exit code 0, a second one at once;
what keeps it from starting is one line and exit code 1. An option that has no effect is named, never ignored.

How to read it: ``run`` is the program from start to exit.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import anyio
import attrs

from nsqkit.broker.core import metadata
from nsqkit.broker.core.options import OPTIONS, BrokerOptions
from nsqkit.broker.log import log_handler
from nsqkit.broker.server import Nsqd
from nsqkit.broker.version import version_line
from nsqkit.errors import OptionError

EXIT_FAILURE: Final = 1

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

WITHOUT_EFFECT: Final[Mapping[str, tuple[str, ...]]] = {
    "all messages are kept in memory": ("max_bytes_per_file", "sync_every", "sync_timeout_ns"),
    "its topics and channels are read, and nothing is written there": ("data_path",),
    "there is no TLS": ("https_address", "tls_cert", "tls_key", "tls_root_ca_file", "tls_min_version"),
    "no nsqlookupd is told of this node": (
        *("lookupd_tcp_addresses", "broadcast_tcp_port", "broadcast_http_port"),
    ),
    "no auth server is asked": (
        *("auth_http_request_method", "http_client_connect_timeout_ns", "http_client_request_timeout_ns"),
    ),
    "nothing is sent to statsd": (
        *("statsd_address", "statsd_prefix", "statsd_interval_ns", "statsd_mem_stats"),
        *("statsd_udp_packet_size", "statsd_exclude_ephemeral"),
    ),
    "no latencies are measured": (
        *("e2e_processing_latency_window_time_ns", "e2e_processing_latency_percentiles"),
    ),
}
"""Options that this version takes and does nothing with, by what it does instead."""

PROTECTION: Final = ("tls_required", "tls_client_auth_policy", "auth_http_addresses")
"""Options that keep clients out. A broker that cannot do that must not start as if it could."""

logger = logging.getLogger("nsqkit.broker")


def run(options: BrokerOptions) -> int:
    """Run a broker until a signal ends it.

    Returns:
        The exit code: 0, or 1 if the broker could not start.
    """
    nsqd = Nsqd(options)
    _start_log(nsqd)
    use_uvloop = find_spec("uvloop") is not None
    logger.info(version_line())
    logger.info("ID: %d", options.node_id)
    logger.info("event loop: %s", "uvloop" if use_uvloop else "asyncio (install uvloop for a faster one)")
    for warning in warnings_for(options):
        logger.warning(warning)
    if refusal := refusal_of(options):
        logger.critical(refusal)
        return EXIT_FAILURE
    gc.disable()  # the event loop is imported now; collecting what is there to stay would take a tenth of the start
    try:
        return anyio.run(_serve, nsqd, backend_options={"use_uvloop": use_uvloop})
    finally:
        gc.enable()


def _start_log(nsqd: Nsqd) -> None:
    # The level is asked for again with each line: PUT /config/log_level changes it while the broker runs.
    root = logging.getLogger("nsqkit")
    root.addHandler(log_handler(sys.stderr, nsqd.options.log_prefix, lambda: nsqd.options.log_level))
    root.setLevel(logging.DEBUG)


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


def _restore(nsqd: Nsqd) -> None:
    """Make the topics and channels that the data path names, if it names any."""
    path = Path(nsqd.options.data_path, metadata.FILE_NAME)
    if path.exists():
        metadata.restore(nsqd.broker, path.read_bytes(), nsqd.clock.now_ns())


async def _serve(nsqd: Nsqd) -> int:
    """Run the broker; the first signal stops it, and from then on a signal does what it does by default."""
    with ExitStack() as receiving:
        signals = receiving.enter_context(anyio.open_signal_receiver(*STOP_SIGNALS))
        async with AsyncExitStack() as running:
            try:
                _restore(nsqd)
                await running.enter_async_context(nsqd)
            except (OSError, OptionError) as error:
                logger.critical("%s", error.strerror if isinstance(error, OSError) else error)
                return EXIT_FAILURE
            gc.freeze()
            gc.enable()
            received = await anext(signals)
            receiving.close()
            for each in STOP_SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            logger.info("stopping on %s", received.name)
    return 0
