"""Measures encoding and decoding in this process: nanoseconds per message, and the same functions of pynsq.

Decoding includes objects with a body, and the garbage collector stays on as it does for users. A figure is the best of
several runs, since disturbances of a loop without I/O only add time.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import timeit
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from nsqkit.wire.commands import (
    MAGIC_V2,
    CommandDecoder,
    encode_finish,
    encode_multi_publish,
    encode_publish,
)
from nsqkit.wire.frames import FrameDecoder
from nsqkit.wire.messages import encode_messages
from tests.benchmarks.harness import Bench
from tests.benchmarks.programs.assignment import BODY
from tests.benchmarks.table import Row
from tests.rules import AllowAll

COUNT = 1000
"""Messages in a buffer: about as many as one read brings when there are many."""

RUNS = 100

IDS = [b"%016x" % number for number in range(COUNT)]
EQUAL = [BODY] * COUNT
MIXED = [BODY[: 150 + number % 50] for number in range(COUNT)]

PART_SIZE = 16 * 1024
"""Of a batch, as go-nsq writes it."""


def measure(bench: Bench) -> Iterator[Row]:
    """Measure each direction of the wire format."""
    runs = bench.effort.count(RUNS)
    peer = _pynsq() if "pynsq" in bench.peers else {}
    for what, function in _nsqkit().items():
        peers = {"pynsq": _nanoseconds(peer[what], runs)} if what in peer else {}
        yield Row(what=what, unit="ns/msg", value=_nanoseconds(function, runs), peers=peers, less_is_better=True)


def _nanoseconds(function: Callable[[], object], runs: int) -> float:
    return min(timeit.repeat(function, gc.enable, number=1, repeat=runs)) / COUNT * 1e9


def _nsqkit() -> dict[str, Callable[[], object]]:
    equal = b"".join(encode_messages(1, IDS, EQUAL))
    mixed = b"".join(encode_messages(1, IDS, MIXED))
    publishes = b"".join(encode_publish(b"topic", BODY) for _ in range(COUNT))
    batch = encode_multi_publish(b"topic", EQUAL)
    finishes = b"".join(map(encode_finish, IDS))
    return {
        "encode PUB": lambda: [encode_publish(b"topic", body) for body in EQUAL],
        "encode MPUB": lambda: encode_multi_publish(b"topic", EQUAL),
        "encode FIN": lambda: [encode_finish(message_id) for message_id in IDS],
        "encode message frames": lambda: encode_messages(1, IDS, EQUAL),
        "decode message frames of one size": lambda: FrameDecoder().feed(equal),
        "decode message frames of many sizes": lambda: FrameDecoder().feed(mixed),
        "decode PUB": lambda: _decode_commands(publishes),
        "decode MPUB": lambda: _decode_commands(batch),
        "decode MPUB in parts": lambda: _decode_commands(batch, PART_SIZE),
        "decode FIN": lambda: _decode_commands(finishes),
    }


def _decode_commands(data: bytes, part_size: int = 1 << 20) -> None:
    decoder = CommandDecoder(AllowAll(), max_msg_size=1 << 20, max_body_size=5 << 20)
    data = MAGIC_V2 + data
    for start in range(0, len(data), part_size):
        deque(decoder.feed(data[start : start + part_size]), maxlen=0)


def _pynsq() -> dict[str, Callable[[], object]]:
    """The corresponding functions of pynsq, which never decodes commands."""
    protocol = importlib.import_module("nsq.protocol")
    records = [frame[4:] for frame in encode_messages(1, IDS, EQUAL)]

    def decode(record: bytes) -> Any:
        # Only the length is missing, which its reader has read before.
        return protocol.decode_message(protocol.unpack_response(record)[1])

    return {
        "encode PUB": lambda: [protocol.pub("topic", body) for body in EQUAL],
        "encode MPUB": lambda: protocol.mpub("topic", EQUAL),
        "encode FIN": lambda: [protocol.finish(message_id) for message_id in IDS],
        "decode message frames of one size": lambda: [decode(record) for record in records],
        "decode message frames of many sizes": lambda: [decode(record) for record in records],
    }
