"""Faults inside the processes of a Spark job, at points that a test names.

A file, named by the variable NSQKIT_FAULT, has the present fault. The processes read it at each point, so a test can
change it while they run. A fault acts ``times`` times, in whichever processes come first: a marker file for each time
is created exclusively. Nothing in nsqkit has code for this: ``install`` replaces functions, and
``inject/sitecustomize.py`` calls it when a Python starts.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

VARIABLE = "NSQKIT_FAULT"


class Injected(Exception):
    """The exception of a fault."""


@attrs.frozen
class Fault:
    """What happens, and where.

    Attributes:
        point: its name, with ``before`` or ``after``: ``put_slot:after``.
        action: ``raise``, ``kill`` and ``stop`` (SIGKILL and SIGSTOP for this process), ``kill_executor``, ``block``
            (until the process is killed), ``wait`` (for ``release``), or ``measure`` (the memory of the process).
        markers: the beginning of the names of the files that mark that it has acted; they contain the process id.
        call: the number of the call in a process from which on it acts, beginning with 1.
        times: how often it acts.
    """

    point: str
    action: str
    markers: str
    call: int = 1
    times: int = 1

    @property
    def marker(self) -> Path:
        """The file of the first time."""
        return Path(f"{self.markers}.0")

    @property
    def results(self) -> list[int]:
        """The contents of all markers: process ids, or bytes of memory."""
        return [int(path.read_text()) for path in Path(self.markers).parent.glob(f"{Path(self.markers).name}.*")]

    @property
    def gate(self) -> Path:
        """A pipe that the process opens which waits."""
        return Path(f"{self.markers}.gate")

    def release(self) -> None:
        """Have the process continue that waits."""
        self.gate.write_text("")

    def write(self, path: Path) -> None:
        """Have the processes that know this file act."""
        if self.action == "wait":
            os.mkfifo(self.gate)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(attrs.asdict(self)))
        temporary.replace(path)


def present_fault() -> Fault | None:
    """Return the present fault; None if there is none."""
    try:
        return Fault(**json.loads(Path(os.environ[VARIABLE]).read_text()))
    except (KeyError, FileNotFoundError):
        return None


_calls: Counter[tuple[str, str]] = Counter()


def hit(point: str) -> None:
    """Act if the present fault is at this point."""
    fault = present_fault()
    if fault is None or fault.point != point:
        return
    _calls[fault.markers, point] += 1
    if _calls[fault.markers, point] < fault.call or not _take_turn(fault):
        return
    if fault.action == "raise":
        raise Injected(point)
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.action == "kill_executor":
        # The parent of a worker is the Python daemon, and its parent is the executor.
        os.kill(_parent(os.getppid()), signal.SIGKILL)
        threading.Event().wait()
    elif fault.action == "wait":
        fault.gate.read_text()
    elif fault.action == "block":
        threading.Event().wait()


def _take_turn(fault: Fault) -> bool:
    """Return whether the fault acts now; False if it has acted as often as it may."""
    content = peak_memory() if fault.action == "measure" else os.getpid()
    temporary = Path(f"{fault.markers}-{os.getpid()}-{threading.get_ident()}")
    temporary.write_text(str(content))
    try:
        for number in range(fault.times):
            with suppress(FileExistsError):
                os.link(temporary, f"{fault.markers}.{number}")
                return True
    finally:
        temporary.unlink()
    return False


def peak_memory() -> int:
    """Return the largest number of bytes of memory that this process has had."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def install() -> None:
    """Put points around the functions whose effects survive a process."""
    from nsqkit.consumer import Consumer
    from nsqkit.spark import batch_plan
    from nsqkit.spark.slots.wal import PartitionWal

    for name in ("put_slot", "put_seal"):
        setattr(PartitionWal, name, around(name, getattr(PartitionWal, name)))
    batch_plan.store_plan = around("store_plan", batch_plan.store_plan)
    # It imports the function above by its name.
    from nsqkit.spark.stream_reader import WalStream

    WalStream.latest_offset = around("latest_offset", WalStream.latest_offset)  # type: ignore[method-assign]
    Consumer.finish_confirmed = in_halves(Consumer.finish_confirmed)  # type: ignore[method-assign]


def in_halves(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that finishes messages, with the points ``finish:half`` and ``finish:after``."""

    @functools.wraps(function)
    async def finish(consumer: Any, messages: Iterable[Any]) -> Any:
        chunk = list(messages)
        if (fault := present_fault()) is None or fault.point != "finish:half":
            result = await function(consumer, chunk)
            hit("finish:after")
            return result
        half = len(chunk) // 2
        first = await function(consumer, chunk[:half])
        hit("finish:half")
        second = await function(consumer, chunk[half:])
        return attrs.evolve(first, failed=first.failed + second.failed, unknown=first.unknown + second.unknown)

    return finish


def around(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a point before it and one after it."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*arguments: Any, **keywords: Any) -> Any:
            hit(f"{name}:before")
            result = await function(*arguments, **keywords)
            hit(f"{name}:after")
            return result

        return call_async

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        hit(f"{name}:before")
        result = function(*arguments, **keywords)
        hit(f"{name}:after")
        return result

    return call
