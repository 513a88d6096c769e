"""The memory of this process, for ``/stats``.

The keys are nsqd's. The values are those of Python, and 0 where it has none: its garbage collector measures no pauses,
and has no separate heap that could be idle or released.
"""

from __future__ import annotations

import gc
import os
import sys

STATM = "/proc/self/statm"
"""The file of Linux with the sizes of this process in pages: total, resident, …"""


def read_memory_stats() -> dict[str, int]:
    """Return the present numbers.

    ``heap_objects`` is the number of allocated blocks, ``heap_in_use_bytes`` the resident memory of the process, and
    ``gc_total_runs`` the number of collections of all generations.
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
