"""The memory of this process, as ``/stats`` tells it.

The rule it guards: the keys are nsqd's, the values are Python's where it has something of the kind, and 0 where it
has not: its collector counts no pauses, and keeps no heap of its own that could be idle or given back.

How to read it: one function, which asks the interpreter and, on Linux, the kernel.
"""

from __future__ import annotations

import gc
import os
import sys

from nsqkit.broker.core.report.stats import MemoryStats

STATM = "/proc/self/statm"
"""Where Linux tells a process its sizes in pages: all of it, what is resident, …"""


def read_memory_stats() -> MemoryStats:
    """Return the numbers of this moment.

    ``heap_objects`` is the blocks that the allocator has given out, ``heap_in_use_bytes`` the resident memory of the
    whole process, and ``gc_total_runs`` the collections of all generations.
    """
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": _resident_size(),
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


def _resident_size() -> int:
    try:
        with open(STATM, encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return 0  # not Linux
    return pages * os.sysconf("SC_PAGE_SIZE")
