"""Profiles of the running process, under the paths of Go's profiles.

Paths, parameters, statuses and headers are those of nsqd's routes (Go's net/http/pprof, nsqd/http.go); the contents are
Python's, as plain text. Nothing is measured before a request comes.
"""

from __future__ import annotations

import gc
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

from nsqkit.clock import NS_PER_S, Clock
from nsqkit.http.messages import Handler, HTTPError, Query, Request, Response, parse_integer

Routes: TypeAlias = tuple[tuple[str, str, Handler], ...]

SAMPLE_INTERVAL: Final = 0.01
"""Seconds between two samples of all threads; as in Go's profiler."""

PROFILE_SECONDS: Final = 30
"""The default duration of a profile; as in Go."""

PROFILE_SECONDS_MAX: Final = 600
"""The longest duration: only one profile runs at a time, and its client may have disconnected."""

_NO_SNIFF = ("X-Content-Type-Options", "nosniff")
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_HTML = ("Content-Type", "text/html; charset=utf-8")
_BYTES = ("Content-Type", "application/octet-stream")

_PROFILING: Final = threading.Lock()


def _goroutine() -> Counter[str]:
    return Counter("\n".join(["", *lines]) for _, lines in _stacks())


def _heap() -> Counter[str]:
    if not tracemalloc.is_tracing():
        return Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in map(type, gc.get_objects()))
    statistics = tracemalloc.take_snapshot().statistics("lineno")
    return Counter({f"bytes {statistic.traceback}": statistic.size for statistic in statistics})


PROFILES: Final[Mapping[str, Callable[[], Counter[str]]]] = {
    "block": Counter,
    "goroutine": _goroutine,
    "heap": _heap,
    "threadcreate": lambda: Counter(thread.name for thread in threading.enumerate()),
}

CONTENTS: Final[Mapping[str, str]] = {
    "block": "nothing; tasks have no locks to wait for",
    "cmdline": "the command line",
    "goroutine": "stacks of all tasks and threads; debug=2 gives their names, too",
    "heap": "memory by line if tracemalloc runs, else objects by type; gc=1 collects garbage before",
    "profile": "where all threads are, looked at 100 times a second for seconds=N; folded stacks",
    "threadcreate": "threads by name",
}
"""The text of the index for each path."""


def _stacks() -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each task and thread, with its lines of code, innermost first."""
    for task in anyio.get_running_tasks():
        lines = []
        awaitable: object = task.coro
        while awaitable is not None:
            frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
            if frame is not None:
                lines.append(_line(frame))
            awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
        yield f"task {task.name}", lines[::-1]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for identifier, frame in sys._current_frames().items():
        yield f"thread {names.get(identifier, identifier)}", [_line(caller) for caller in _callers(frame)]


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _line(frame: FrameType) -> str:
    return f"#\t{frame.f_code.co_qualname}\t{frame.f_code.co_filename}:{frame.f_lineno}"


def index(request: Request) -> Response:
    """List the profiles."""
    items = [f"<li><a href='{name}?debug=1'>{name}</a>: {text}</li>" for name, text in CONTENTS.items()]
    page = f"<html><head><title>/debug/pprof/</title></head><body><ul>\n{chr(10).join(items)}\n</ul></body></html>"
    return Response(200, (_HTML, _NO_SNIFF), page.encode())


def cmdline(request: Request) -> Response:
    """Return the command line, its words separated by NUL."""
    return _text("\0".join(sys.orig_argv))


def symbol(request: Request) -> Response:
    """Answer that symbols are available, as Go does; Python has no program counters to look up."""
    return _text("num_symbols: 1\n")


async def counted(name: str, clock: Clock, request: Request) -> Response:
    """Return one of ``PROFILES``, or with ``seconds`` its change in that time."""
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
        await clock.wait_until(clock.now_ns() + min(seconds, PROFILE_SECONDS_MAX) * NS_PER_S)
        changes = count()
        changes.subtract(before)
        return _attachment(f"{name}-delta", _listed(name, changes))
    if name == "heap" and _integer(query.get("gc")) > 0:
        gc.collect()
    if name == "goroutine" and debug >= 2:
        return _text("\n\n".join("\n".join([f"{owner}:", *lines]) for owner, lines in _stacks()))
    listed = _listed(name, count())
    return _text(listed) if debug else _attachment(name, listed)


def _listed(name: str, counts: Counter[str]) -> str:
    lines = [f"{number} @ {key}\n" for key, number in counts.most_common() if number]
    return f"{name} profile: total {sum(counts.values())}\n" + "".join(lines)


async def cpu_profile(request: Request) -> Response:
    """Sample all threads for ``seconds``, and return the number of samples of each stack."""
    seconds = _integer(Query(request).get("seconds"))
    seconds = min(seconds, PROFILE_SECONDS_MAX) if seconds > 0 else PROFILE_SECONDS
    if not _PROFILING.acquire(blocking=False):
        return _refusal(500, "Could not enable CPU profiling: cpu profiling already in use")
    stop = threading.Event()
    try:
        stacks = await anyio.to_thread.run_sync(_sample, seconds, stop, abandon_on_cancel=True)
    finally:
        stop.set()
        _PROFILING.release()
    return _attachment("profile", "".join(f"{stack} {number}\n" for stack, number in stacks.most_common()))


def _sample(seconds: float, stop: threading.Event) -> Counter[str]:
    # The real time, not that of a Clock: this thread samples what the processor does meanwhile.
    stacks: Counter[str] = Counter()
    end = time.monotonic() + seconds
    own = threading.get_ident()
    while time.monotonic() < end and not stop.wait(SAMPLE_INTERVAL):
        stacks.update(_folded(frame) for thread, frame in sys._current_frames().items() if thread != own)
    return stacks


def _folded(frame: FrameType) -> str:
    names = [f"{each.f_globals.get('__name__', '?')}.{each.f_code.co_qualname}" for each in _callers(frame)]
    return ";".join(reversed(names))


def set_block_rate(request: Request) -> Response:
    """Check the rate; answer as nsqd does, whose answer to a valid one is an error."""
    text = Query(request).get("rate")
    try:
        parse_integer(text)
    except ValueError as error:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        return Response.plain(f'invalid block rate : strconv.Atoi: parsing "{quoted}": {error}', status=400)
    raise HTTPError(500, "INTERNAL_ERROR", "nsqd answers so to a rate that it has set")


def free_memory(request: Request) -> Response:
    """Return free memory to the system; answer as nsqd does, with an error."""
    import ctypes

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
    raise HTTPError(500, "INTERNAL_ERROR", "nsqd answers so after it has freed memory")


MEMORY_ROUTES: Final[Routes] = (
    ("PUT", "/debug/setblockrate", set_block_rate),
    ("POST", "/debug/freememory", free_memory),
)
"""The routes that nsqd has beside its profiles."""


def pprof_routes(index_path: str, clock: Clock) -> Routes:
    """Return the routes of the profiles. The path of their list ends with a slash in nsqd, and not in nsqlookupd."""
    return (
        ("GET", index_path, index),
        ("GET", "/debug/pprof/cmdline", cmdline),
        ("GET", "/debug/pprof/symbol", symbol),
        ("POST", "/debug/pprof/symbol", symbol),
        ("GET", "/debug/pprof/profile", cpu_profile),
        *(("GET", f"/debug/pprof/{name}", partial(counted, name, clock)) for name in PROFILES),
    )


def _text(text: str) -> Response:
    return Response(200, (_TEXT, _NO_SNIFF), text.encode("utf-8", "surrogateescape"))


def _attachment(name: str, text: str) -> Response:
    headers = (("Content-Disposition", f'attachment; filename="{name}"'), _BYTES, _NO_SNIFF)
    return Response(200, headers, text.encode("utf-8", "surrogateescape"))


def _refusal(status: int, text: str) -> Response:
    return Response(status, (_TEXT, _NO_SNIFF, ("X-Go-Pprof", "1")), f"{text}\n".encode())


def _integer(text: str) -> int:
    """Return the number in a query; 0 if it is invalid."""
    try:
        return parse_integer(text)
    except ValueError:
        return 0
