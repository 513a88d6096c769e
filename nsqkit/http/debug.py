"""What a running program does with its time, tasks and memory, under the paths of Go's profiles.

The rule it guards: paths, parameters, statuses and headers are those of nsqd's routes (Go's net/http/pprof, nsqd's
nsqd/http.go), the content is Python's, in plain text. Nothing is measured before somebody asks.

How to read it: ``CONTENTS`` says what is to be found where. ``pprof_routes`` is the table for nsqd and nsqlookupd,
``MEMORY_ROUTES`` is nsqd's alone.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Final, TypeAlias

import anyio
import anyio.to_thread

from nsqkit.http.messages import Handler, HTTPError, Request, Response
from nsqkit.http.query import Query

__all__ = ["MEMORY_ROUTES", "pprof_routes"]

Routes: TypeAlias = tuple[tuple[str, str, Handler], ...]

SAMPLE_INTERVAL: Final = 0.01
"""Seconds between two looks at all threads; Go's profiler looks as often."""

PROFILE_SECONDS: Final = 30
"""How long is looked if the request does not say; as in Go."""

PROFILE_SECONDS_MAX: Final = 600
"""How long is looked at most: only one profile is taken at a time, and who has asked may be gone."""

_NO_SNIFF = ("X-Content-Type-Options", "nosniff")
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_HTML = ("Content-Type", "text/html; charset=utf-8")
_BYTES = ("Content-Type", "application/octet-stream")

_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT64_MAX: Final = (1 << 63) - 1
_PROFILING: Final = threading.Lock()


# ---- profiles: each a number of things by what they have in common ------------------------------------------------


def _block() -> Counter[str]:
    return Counter()


def _goroutine() -> Counter[str]:
    return Counter("\n".join(["", *stack]) for _, stack in _stacks())


def _heap() -> Counter[str]:
    if not tracemalloc.is_tracing():
        return Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in map(type, gc.get_objects()))
    statistics = tracemalloc.take_snapshot().statistics("lineno")
    return Counter({f"bytes {statistic.traceback}": statistic.size for statistic in statistics})


def _threadcreate() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate())


PROFILES: Final[Mapping[str, Callable[[], Counter[str]]]] = {
    "block": _block,
    "goroutine": _goroutine,
    "heap": _heap,
    "threadcreate": _threadcreate,
}
"""What can be counted."""

CONTENTS: Final[Mapping[str, str]] = {
    "block": "nothing; tasks have no locks to wait for",
    "cmdline": "the command line",
    "goroutine": "stacks of all tasks and threads; debug=2 gives their names, too",
    "heap": "memory by line if tracemalloc runs, else objects by type; gc=1 collects garbage before",
    "profile": "where all threads are, looked at 100 times a second for seconds=N; folded stacks",
    "threadcreate": "threads by name",
}
"""What the index says of each path."""


def _stacks() -> Iterator[tuple[str, list[str]]]:
    """Yield tasks and threads by name, each with the lines that it is in, the innermost first."""
    for task in anyio.get_running_tasks():
        yield f"task {task.name}", [*_awaited(task.coro)][::-1]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for identifier, frame in sys._current_frames().items():
        yield f"thread {names.get(identifier, identifier)}", [*_callers(frame)]


def _awaited(awaitable: object) -> Iterator[str]:
    """Yield the lines that a coroutine is in, the outermost first."""
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is not None:
            yield _line(frame)
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)


def _callers(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield _line(frame)
        frame = frame.f_back


def _line(frame: FrameType) -> str:
    return f"#\t{frame.f_code.co_qualname}\t{frame.f_code.co_filename}:{frame.f_lineno}"


# ---- routes -------------------------------------------------------------------------------------------------------


def index(request: Request) -> Response:
    """List the profiles."""
    items = [f"<li><a href='{name}?debug=1'>{name}</a>: {text}</li>" for name, text in CONTENTS.items()]
    page = f"<html><head><title>/debug/pprof/</title></head><body><ul>\n{chr(10).join(items)}\n</ul></body></html>"
    return Response(200, (_HTML, _NO_SNIFF), page.encode())


def cmdline(request: Request) -> Response:
    """Tell the command line, its words separated by NUL."""
    return _text("\0".join(sys.orig_argv))


def symbol(request: Request) -> Response:
    """Say that symbols could be asked for; there are no program counters here that they would belong to."""
    return _text("num_symbols: 1\n")


async def counted(name: str, request: Request) -> Response:
    """Tell one of ``PROFILES``, or with ``seconds`` how it changes in that time."""
    query = Query(request)
    count = PROFILES[name]
    debug = _integer(query.get("debug"))
    if query.get("seconds"):
        seconds = _integer(query.get("seconds"))
        if seconds <= 0:
            return _refusal(400, 'invalid value for "seconds" - must be a positive integer')
        if debug:
            return _refusal(400, "seconds and debug params are incompatible")
        before = count()
        await anyio.sleep(min(seconds, PROFILE_SECONDS_MAX))
        changes = count()
        changes.subtract(before)
        return _attachment(f"{name}-delta", _listed(name, changes))
    if name == "heap" and _integer(query.get("gc")) > 0:
        gc.collect()
    if name == "goroutine" and debug >= 2:
        return _text("\n\n".join("\n".join([f"{whose}:", *stack]) for whose, stack in _stacks()))
    listed = _listed(name, count())
    return _text(listed) if debug else _attachment(name, listed)


def _listed(name: str, counts: Counter[str]) -> str:
    lines = [f"{number} @ {what}\n" for what, number in counts.most_common() if number]
    return f"{name} profile: total {sum(counts.values())}\n" + "".join(lines)


async def cpu_profile(request: Request) -> Response:
    """Look at all threads for ``seconds``, and tell how often they were seen in which stacks."""
    seconds = _integer(Query(request).get("seconds"))
    if seconds <= 0:
        seconds = PROFILE_SECONDS
    if not _PROFILING.acquire(blocking=False):
        return _refusal(500, "Could not enable CPU profiling: cpu profiling already in use")
    stop = threading.Event()
    try:
        sample = partial(_sample, min(seconds, PROFILE_SECONDS_MAX), stop)
        stacks = await anyio.to_thread.run_sync(sample, abandon_on_cancel=True)
    finally:
        stop.set()
        _PROFILING.release()
    return _attachment("profile", "".join(f"{stack} {number}\n" for stack, number in stacks.most_common()))


def _sample(seconds: float, stop: threading.Event) -> Counter[str]:
    stacks: Counter[str] = Counter()
    end = time.monotonic() + seconds
    own = threading.get_ident()
    while time.monotonic() < end and not stop.wait(SAMPLE_INTERVAL):
        stacks.update(_folded(frame) for thread, frame in sys._current_frames().items() if thread != own)
    return stacks


def _folded(frame: FrameType | None) -> str:
    names = []
    while frame is not None:
        names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(names))


def set_block_rate(request: Request) -> Response:
    """Take a rate, and answer as nsqd does, which fails at wording its success."""
    text = Query(request).get("rate")
    try:
        _parse_integer(text)
    except ValueError as error:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        return Response.plain(f'invalid block rate : strconv.Atoi: parsing "{quoted}": {error}', status=400)
    raise HTTPError(500, "INTERNAL_ERROR", "nsqd has no other answer to a rate that it has set")


def free_memory(request: Request) -> Response:
    """Give memory back to the system, and answer as nsqd does, which fails at wording its success."""
    import ctypes

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
    raise HTTPError(500, "INTERNAL_ERROR", "nsqd has no other answer to memory that it has freed")


MEMORY_ROUTES: Final[Routes] = (
    ("PUT", "/debug/setblockrate", set_block_rate),
    ("POST", "/debug/freememory", free_memory),
)
"""What nsqd has beside its profiles."""


def pprof_routes(index_path: str) -> Routes:
    """Return the routes of the profiles.

    Args:
        index_path: where the list of them is: nsqd has a slash at its end, nsqlookupd has not.
    """
    return (
        ("GET", index_path, index),
        ("GET", "/debug/pprof/cmdline", cmdline),
        ("GET", "/debug/pprof/symbol", symbol),
        ("POST", "/debug/pprof/symbol", symbol),
        ("GET", "/debug/pprof/profile", cpu_profile),
        *(("GET", f"/debug/pprof/{name}", partial(counted, name)) for name in PROFILES),
    )


# ---- answers ------------------------------------------------------------------------------------------------------


def _text(text: str) -> Response:
    return Response(200, (_TEXT, _NO_SNIFF), text.encode("utf-8", "surrogateescape"))


def _attachment(name: str, text: str) -> Response:
    headers = (("Content-Disposition", f'attachment; filename="{name}"'), _BYTES, _NO_SNIFF)
    return Response(200, headers, text.encode("utf-8", "surrogateescape"))


def _refusal(status: int, text: str) -> Response:
    return Response(status, (_TEXT, _NO_SNIFF, ("X-Go-Pprof", "1")), f"{text}\n".encode())


def _integer(text: str) -> int:
    """Return the number in a query; 0 if it is none."""
    try:
        return _parse_integer(text)
    except ValueError:
        return 0


def _parse_integer(text: str) -> int:
    """Return a 64-bit integer.

    Raises:
        ValueError: the text is none; why not, in the words of Go's strconv.Atoi.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError("invalid syntax")
    digits = text.lstrip("+-").lstrip("0") or "0"
    number = int(digits[:20]) * (-1 if text.startswith("-") else 1)
    if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
        raise ValueError("value out of range")
    return number
