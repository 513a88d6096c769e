"""Limits of the engine that a plan may lower, so that a world of few messages reaches them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Final

KNOBS: Final[Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]]] = {
    "TURN_WORDS_MAX": (("broker.core.session.turns",), (1, 3)),
    "TURN_COMMANDS_MAX": (("broker.core.session.turns",), (1, 3)),
    "SHORT_TURN_WORDS_MAX": (("broker.core.session.turns",), (1, 2)),
    "TURN_SIZE": (("client.session",), (1, 100)),
    "PART_COUNT": (("broker.core.topics.topic",), (1, 2)),
    "PART_COUNT_MAX": (("broker.core.topics.batch", "broker.core.session.session", "broker.http_api"), (1, 2)),
    "DELIVERY_SIZE_MAX": (("broker.core.topics.channel",), (60, 400)),
    "READ_SIZE": (("broker.core.disk.recovery", "broker.core.disk.read_ahead"), (16, 100)),
    "UNSYNCED_FILES_MAX": (("broker.core.disk.disk_queue",), (1, 2)),
    "BATCH_QUEUES_MAX": (("broker.core.disk.storage",), (1, 2)),
    "TURN_COUNT": (("lookupd.session",), (1, 3)),
    "OUTBOX_SIZE_MAX": (
        (
            *("broker.core.session.frame_buffer", "broker.core.session.nsqd_frame_buffer", "lookupd.session"),
            "producer.session",
        ),
        (1, 300, 2_000),
    ),
    "SPLIT_SIZE": (("broker.http_api",), (1, 30)),
    "CLOCK_CHECK_COUNT": (("consumer.handling",), (1, 2)),
    "SEND_SIZE": (("http.server",), (1, 1_000)),
    "OVERSHOOT": (("consumer.session",), (0, 1)),
    "READ_AHEAD_MAX": (("transport.asyncio_stream",), (1, 300)),
    "FULL_READ_SIZE": (("transport.pump",), (1, 500)),
    "RECEIVE_SIZE": (("http.client", "http.server"), (20, 100)),
}
"""By the name of a constant: the modules that use it, and the values that plans give it."""

READS: Final = ("READ_AHEAD_MAX", "FULL_READ_SIZE", "RECEIVE_SIZE")
"""Those of streams, which only driver worlds have."""


def draw(random: Random) -> dict[str, int]:
    """Return the values of a plan, for most plans none."""
    if random.random() >= 0.3:
        return {}
    names = (name for name in KNOBS if name not in READS)
    return {name: random.choice(KNOBS[name][1]) for name in names if random.random() < 0.5}


def draw_reads(random: Random) -> dict[str, int]:
    """Return the values of ``READS`` of a plan, for half of the plans."""
    if random.random() < 0.5:
        return {}
    return {name: random.choice(KNOBS[name][1]) for name in READS if random.random() < 0.7}


@contextmanager
def turned(values: Mapping[str, int]) -> Iterator[None]:
    """Give constants other values."""
    places = [(importlib.import_module(f"nsqkit.{module}"), name) for name in values for module in KNOBS[name][0]]
    earlier = [(module, name, getattr(module, name)) for module, name in places]
    try:
        for module, name in places:
            setattr(module, name, values[name])
        yield
    finally:
        for module, name, value in earlier:
            setattr(module, name, value)
