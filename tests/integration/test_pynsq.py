"""pynsq, as it comes from PyPI, and the broker: what another client publishes and consumes goes through."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from nsqkit import Consumer, Producer
from nsqkit.broker.core.broker import Broker
from nsqkit.testing.servers import NsqdServer
from tests.integration.stage import is_empty, take

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nsq") is None, reason="pynsq is not installed")

PROGRAM = Path(__file__).with_name("pynsq_program.py")
PATIENCE = 10.0


def pynsq(*args: object) -> list[str]:
    """Run the program and return the lines that it printed."""
    run = subprocess.run(
        [sys.executable, PROGRAM, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def wait_until(nsqd: NsqdServer, condition: Callable[[Broker], bool]) -> None:
    """Return when the broker, asked again and again, fulfils ``condition``."""
    deadline = time.monotonic() + PATIENCE
    while not nsqd.inspect(condition):
        assert time.monotonic() < deadline


def all_is_finished(broker: Broker) -> bool:
    return not broker.sessions and is_empty(broker.topics[b"t"].channels[b"c"])


def test_pynsq_publishes_and_our_consumer_receives(nsqd: NsqdServer):
    pynsq("publish", nsqd.tcp_address, "t", "one", "two")

    async def consume() -> list[bytes]:
        with anyio.fail_after(PATIENCE):
            async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=5) as consumer:
                messages = await take(consumer, 5)
                for message in messages:
                    message.finish()
        return [message.body for message in messages]

    assert sorted(anyio.run(consume)) == [b"one", b"one", b"one", b"two", b"two"]  # PUB, MPUB; DPUB
    wait_until(nsqd, all_is_finished)


def test_our_producer_publishes_and_pynsq_receives(nsqd: NsqdServer):
    async def publish() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish("t", b"one")
            await producer.multi_publish("t", [b"two", b"again"])
            await producer.deferred_publish("t", b"later", delay=0.001)

    anyio.run(publish)
    assert sorted(pynsq("consume", nsqd.tcp_address, "t", "c", 4)) == ["1 later", "1 one", "1 two", "2 again"]
    wait_until(nsqd, all_is_finished)


def test_pynsq_publishes_and_pynsq_receives(nsqd: NsqdServer):
    bodies = [f"body-{n:03}" for n in range(200)]
    pynsq("publish", nsqd.tcp_address, "t", *bodies)
    lines = pynsq("consume", nsqd.tcp_address, "t", "c", 401)
    assert sorted(lines) == sorted([*(f"1 {body}" for body in bodies * 2), "1 body-000"])
    wait_until(nsqd, all_is_finished)
