"""The run of a program: a log on stderr, one service, signals.

A program that starts nsqd or nsqlookupd, reads its log, connects to its ports and stops it by a signal can do the same
here. A port that the log names accepts connections; SIGTERM and SIGINT stop the service with exit code 0, and a second
one ends the process at once; signals that nsqd survives have no effect; a failed start is one line and exit code 1.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from importlib.util import find_spec
from typing import Any, Final

import anyio

from nsqkit.errors import OptionError
from nsqkit.program.log import log_handler

EXIT_FAILURE: Final = 1

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

IGNORED_SIGNALS: Final = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO")
    if hasattr(signal, name)
)
"""Signals that by default end a Python program and not a Go program. SIGHUP ends both."""

GARBAGE_THRESHOLD: Final = 50_000
"""New objects before a run of Python's garbage collector.

Its default of 700 is less than the in-flight messages of one consumer, and a full run visits every queued message: with
a million of them it takes as long as the delivery of 40,000.
"""


def start_log(prefix: str, level: Callable[[], str]) -> None:
    """Write nsqkit's log to stderr; see ``log_handler`` for the arguments."""
    root = logging.getLogger("nsqkit")
    root.addHandler(log_handler(sys.stderr, prefix, level))
    root.setLevel(logging.DEBUG)


def loop_line() -> str:
    """Return a line with the event loop that ``run`` uses."""
    return "event loop: " + ("uvloop" if _has_uvloop() else "asyncio (install uvloop for a faster one)")


def _has_uvloop() -> bool:
    return find_spec("uvloop") is not None


def run(service: AbstractAsyncContextManager[Any], logger: logging.Logger) -> int:
    """Run ``service`` until a signal ends it; return the exit code, 0, or 1 if it could not start."""
    _open_standard_descriptors()
    handlers = {each: signal.signal(each, signal.SIG_IGN) for each in IGNORED_SIGNALS}
    gc.disable()  # no collections during the imports, which would take a tenth of the start
    thresholds = gc.get_threshold()
    gc.set_threshold(GARBAGE_THRESHOLD, *thresholds[1:])
    try:
        return anyio.run(_serve, service, logger, backend_options={"use_uvloop": _has_uvloop()})
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
        for each, handler in handlers.items():
            signal.signal(each, handler)


def _open_standard_descriptors() -> None:
    """Open the descriptors 0 to 2 that the starter has closed.

    Otherwise a socket or a data file gets one of them. libuv aborts when it closes such a socket, and Python's fatal
    errors are written to 2.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


async def _serve(service: AbstractAsyncContextManager[Any], logger: logging.Logger) -> int:
    """Run the service; the first signal stops it, and later ones have their default effect."""
    with ExitStack() as receiving:
        signals = receiving.enter_context(anyio.open_signal_receiver(*STOP_SIGNALS))
        async with AsyncExitStack() as running:
            try:
                await running.enter_async_context(service)
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
