"""The run of a program: a log on stderr, one service, signals.

The rule it guards: who starts nsqd or nsqlookupd and reads its log, connects to its ports and ends it by a signal can
do so here. When a line says that it listens, it does; SIGTERM and SIGINT end it with exit code 0, a second one at
once, and the signals that nsqd survives do nothing; what keeps it from starting is one line and exit code 1.

How to read it: ``run`` is the program from start to exit.
"""

from __future__ import annotations

import gc
import logging
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
"""Signals that end a program of Python by default, and none of Go. SIGHUP ends both."""

GARBAGE_THRESHOLD: Final = 50_000
"""Objects that are made, and not yet given up, before Python looks for cycles among them.

Its default of 700 is less than one consumer has in flight; and each look at everything passes every queued message,
which for a million takes as long as the delivery of 40,000.
"""


def start_log(prefix: str, level: Callable[[], str]) -> None:
    """Write nsqkit's log to stderr.

    Args:
        prefix: what each line begins with.
        level: returns the word for the least level that is written; asked again for each line, since it may change.
    """
    root = logging.getLogger("nsqkit")
    root.addHandler(log_handler(sys.stderr, prefix, level))
    root.setLevel(logging.DEBUG)


def loop_line() -> str:
    """Say which event loop ``run`` takes."""
    return "event loop: " + ("uvloop" if _has_uvloop() else "asyncio (install uvloop for a faster one)")


def _has_uvloop() -> bool:
    return find_spec("uvloop") is not None


def run(service: AbstractAsyncContextManager[Any], logger: logging.Logger) -> int:
    """Run ``service`` until a signal ends it.

    Returns:
        The exit code: 0, or 1 if it could not start.
    """
    handlers = {each: signal.signal(each, signal.SIG_IGN) for each in IGNORED_SIGNALS}
    gc.disable()  # the event loop is imported now; collecting what is there to stay would take a tenth of the start
    thresholds = gc.get_threshold()
    gc.set_threshold(GARBAGE_THRESHOLD, *thresholds[1:])
    try:
        return anyio.run(_serve, service, logger, backend_options={"use_uvloop": _has_uvloop()})
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
        for each, handler in handlers.items():
            signal.signal(each, handler)


async def _serve(service: AbstractAsyncContextManager[Any], logger: logging.Logger) -> int:
    """Run the service; the first signal stops it, and from then on a signal does what it does by default."""
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
