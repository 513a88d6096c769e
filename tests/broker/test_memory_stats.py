from __future__ import annotations

import gc
import sys

import pytest

from nsqkit.broker import memory_stats
from nsqkit.broker.memory_stats import read_memory_stats


def test_values_are_those_of_python():
    ballast = [bytes(1000) for _ in range(1000)]
    before = read_memory_stats()
    gc.collect()
    after = read_memory_stats()
    assert before["heap_objects"] > len(ballast)
    assert after["gc_total_runs"] > before["gc_total_runs"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
def test_resident_memory_is_read():
    size = read_memory_stats()["heap_in_use_bytes"]
    assert 1 << 20 < size < 1 << 40


def test_resident_memory_is_zero_without_proc(monkeypatch):
    monkeypatch.setattr(memory_stats, "STATM", "/nowhere")
    assert read_memory_stats()["heap_in_use_bytes"] == 0


def test_keys_are_those_of_nsqd_in_order():
    assert list(read_memory_stats()) == [
        *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"),
        *("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes", "gc_total_runs"),
    ]
