"""Runs the worlds of many seeds, on several processes.

Seeds are dealt in blocks. Cycles are collected after a few worlds, when nearly all of their objects are garbage; the
collector does not look at the objects that were there before.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from typing import Final

import attrs

from tests.simulation.sizes import SIZES
from tests.simulation.trace import failure_in

BLOCK: Final = 50
COLLECT_EACH: Final = 5
"""Worlds between two collections; a world has one or two megabytes."""

BLOCKS_AHEAD: Final = 2
"""Blocks of each process that are dealt, so that none waits for the next one."""


@attrs.frozen
class Job:
    """The worlds to run.

    Attributes:
        size: the name of their size.
        first: the first seed.
        worlds: their number; None for no limit.
        seconds: begin no block after this time; None for no limit.
        processes: the most processes that share them; one is this one.
        until_failure: begin no world after one that fails.
    """

    size: str
    first: int
    worlds: int | None = 1
    seconds: float | None = None
    processes: int = 1
    until_failure: bool = False


@attrs.define
class Result:
    """The worlds that were run.

    Attributes:
        worlds: their number.
        cpu_s: the CPU time that they took.
        failures: the sentence for each seed whose world failed.
    """

    worlds: int = 0
    cpu_s: float = 0.0
    failures: dict[int, str] = attrs.field(factory=dict)

    def add(self, other: Result) -> None:
        """Add the worlds of another block."""
        self.worlds += other.worlds
        self.cpu_s += other.cpu_s
        self.failures |= other.failures


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect cycles only where ``gc.collect`` is called, and only those that are made from now on."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def run_block(size: str, seeds: range, *, until_failure: bool = False) -> Result:
    """Run worlds one after the other."""
    result = Result()
    run = SIZES[size]
    begin = time.process_time()
    with without_collection():
        for seed in seeds:
            failure = failure_in(run, seed)
            result.worlds += 1
            if not result.worlds % COLLECT_EACH:
                gc.collect()
            if failure is not None:
                result.failures[seed] = failure.sentence
                if until_failure:
                    break
    result.cpu_s = time.process_time() - begin
    return result


def run_job(job: Job, report: Callable[[Result], None]) -> Result:
    """Run all worlds of a job; call ``report`` after each block."""
    result = Result()
    end = None if job.seconds is None else time.monotonic() + job.seconds
    blocks = _blocks(job)
    processes = job.processes if job.worlds is None else min(job.processes, -(-job.worlds // BLOCK))

    def is_over() -> bool:
        return (end is not None and time.monotonic() >= end) or (job.until_failure and bool(result.failures))

    if processes == 1:
        while not is_over() and (seeds := next(blocks, None)) is not None:
            result.add(run_block(job.size, seeds, until_failure=job.until_failure))
            report(result)
        return result
    with ProcessPoolExecutor(processes) as pool:
        pending: set[Future[Result]] = set()
        while True:
            while len(pending) < BLOCKS_AHEAD * processes and not is_over():
                seeds = next(blocks, None)
                if seeds is None:
                    break
                pending.add(pool.submit(run_block, job.size, seeds, until_failure=job.until_failure))
            if not pending:
                return result
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                result.add(future.result())
                report(result)


def _blocks(job: Job) -> Iterator[range]:
    for begin in count(job.first, BLOCK):
        end = begin + BLOCK if job.worlds is None else min(begin + BLOCK, job.first + job.worlds)
        if end <= begin:
            return
        yield range(begin, end)
