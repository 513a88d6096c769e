"""Runs the programs of docs/examples as processes, and checks that a page contains each of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from nsqkit import BlockingProducer
from tests.pages import EXAMPLES, ROOT, blocks
from tests.threads import WAIT_LIMIT, until

ADDRESS = "127.0.0.1:4150"
SHOWN = {block.text for block in blocks("python")}


@contextmanager
def program(name: str, address: str, tmp_path):
    """Start an example with another address and with pipes for its output."""
    path = tmp_path / name
    path.write_text((EXAMPLES / name).read_text(encoding="utf-8").replace(ADDRESS, address), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def without_reconnects(errors: str) -> str:
    """Return what a program wrote, without the warnings that nsqd, a thread of this process, answered late."""
    return "".join(line for line in errors.splitlines(True) if not line.endswith("did not answer within 1 seconds\n"))


def in_flight(nsqd):
    return nsqd.inspect(lambda broker: broker.topics[b"orders"].channels[b"billing"].in_flight_count)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_a_page_contains_every_example(path):
    assert path.read_text(encoding="utf-8") in SHOWN


def test_first_program_prints_the_message_that_it_has_published(nsqd, tmp_path):
    with program("first.py", nsqd.tcp_address, tmp_path) as process:
        output, errors = process.communicate(timeout=WAIT_LIMIT)
        assert (output, without_reconnects(errors)) == ("b'one'\n", "")
        assert process.returncode == 0
    assert in_flight(nsqd) == 0


def test_publish_program_publishes_four_messages(nsqd, tmp_path):
    with program("publish.py", nsqd.tcp_address, tmp_path) as process:
        output, errors = process.communicate(timeout=WAIT_LIMIT)
        assert (output, without_reconnects(errors)) == ("", "")
        assert process.returncode == 0
    assert nsqd.inspect(lambda broker: broker.topics[b"orders"].message_count) == 4


@pytest.mark.parametrize("name", ["worker.py", "blocking.py"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_worker_handles_messages_until_it_receives_a_signal(name, number, nsqd, tmp_path):
    with BlockingProducer(nsqd.tcp_address) as producer:
        producer.publish("orders", b"one")
    with program(name, nsqd.tcp_address, tmp_path) as process:
        assert process.stdout.readline() == "b'one' 1\n"
        until(lambda: in_flight(nsqd) == 0)
        process.send_signal(number)
        assert process.wait(WAIT_LIMIT) == 0
        assert without_reconnects(process.stderr.read()) == ""
