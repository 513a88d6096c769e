"""Forked processes: inherited clients are refused or opened again, new clients work, and the parent is not affected.

A child that hangs fails its test, and is killed by it. Children exit without pytest's clean-up, which is for their
parent.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable

import pytest

from nsqkit import BlockingConsumer, BlockingProducer
from nsqkit.errors import Closed
from nsqkit.loop_thread import portal_provider
from nsqkit.testing.servers import NsqdServer
from tests.threads import WAIT_LIMIT, start, until

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
    # Python warns of forks of programs with threads; these tests show that such forks are safe here.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


class Child:
    """A forked process that calls a function; its exception goes to stderr and into the exit code."""

    def __init__(self, function: Callable[[], object]) -> None:
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                function()
                gc.collect()  # inherited objects may be collected without effect
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)

    def join(self) -> None:
        """Wait for its end and check the exit code."""
        waiting = start(os.waitpid, self._pid, 0)
        try:
            _, status = waiting.result(WAIT_LIMIT)
        except TimeoutError:
            os.kill(self._pid, signal.SIGKILL)
            waiting.result(WAIT_LIMIT)
            pytest.fail("the forked process was stuck")
        assert os.waitstatus_to_exitcode(status) == 0


def in_child(function: Callable[[], object]) -> None:
    Child(function).join()


def count(nsqd: NsqdServer) -> int:
    return nsqd.inspect(lambda broker: broker.topics[b"t"].message_count)


def producer_of(nsqd: NsqdServer) -> BlockingProducer:
    return BlockingProducer(nsqd.tcp_address)


def consumer_of(nsqd: NsqdServer) -> BlockingConsumer:
    return BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=10)


def test_child_starts_its_own_thread():
    def work() -> None:
        with portal_provider() as portal:
            assert portal.call(os.getpid) == os.getpid()
        assert threading.active_count() == 1

    with portal_provider() as portal:
        in_child(work)
        assert portal.call(os.getpid) == os.getpid()


def test_inherited_producer_is_refused_and_keeps_working_in_the_parent(nsqd):
    with producer_of(nsqd) as producer:
        producer.publish("t", b"parent")

        def work() -> None:
            for use in (producer.publish, producer.publish_nowait):
                with pytest.raises(Closed, match="another process"):
                    use("t", b"child")
            assert not producer.is_connected
            producer.close()  # has no effect

        in_child(work)
        producer.publish("t", b"parent")
        assert producer.stats().message_count == 2
    assert count(nsqd) == 2


def test_inherited_producer_may_be_opened_again(nsqd):
    with producer_of(nsqd) as producer:
        producer.publish("t", b"parent")

        def work() -> None:
            with producer:
                producer.publish("t", b"child")
                producer.publish("t", b"child")

        in_child(work)
        producer.publish("t", b"parent")
    assert count(nsqd) == 4


def test_unopened_producer_is_opened_in_children(nsqd):
    producer = producer_of(nsqd)

    def work() -> None:
        with producer:
            producer.multi_publish("t", [b"child"] * 10)

    for child in [Child(work) for _ in range(3)]:
        child.join()
    assert count(nsqd) == 30


def test_leaving_a_block_in_a_child_does_not_close_the_parents_client(nsqd):
    def work() -> None:
        producer.__exit__(None, None, None)
        consumer.__exit__(None, None, None)

    with producer_of(nsqd) as producer, consumer_of(nsqd) as consumer:
        consumer.wait_connected()
        in_child(work)
        producer.publish("t", b"1")
        message = consumer.receive(WAIT_LIMIT)
        assert message is not None
        message.finish()
        until(lambda: consumer.stats().finished == 1)


def test_inherited_consumer_is_refused_and_keeps_working_in_the_parent(nsqd):
    with producer_of(nsqd) as producer, consumer_of(nsqd) as consumer:
        producer.multi_publish("t", [b"1", b"2", b"3"])
        messages = iter(consumer)
        first = next(messages)

        def work() -> None:
            for use in (lambda: next(messages), consumer.receive, consumer.stop, first.finish, first.touch):
                with pytest.raises(Closed, match="another process"):
                    use()

        in_child(work)
        first.finish()
        for _ in range(2):
            next(messages).finish()
        until(lambda: consumer.stats().finished == 3)


def test_child_consumes_beside_its_parent(nsqd):
    with consumer_of(nsqd) as consumer:
        consumer.wait_connected()
        consumer.pause()

        def work() -> None:
            with consumer:
                for _ in range(3):
                    message = consumer.receive(WAIT_LIMIT)
                    assert message is not None
                    message.finish()

        child = Child(work)
        with producer_of(nsqd) as producer:
            producer.multi_publish("t", [b"1", b"2", b"3"])
        child.join()
        assert consumer.stats().received == 0


def test_children_are_forked_while_threads_publish(nsqd):
    """No process hangs, with any locks held at the moment of the fork."""
    with producer_of(nsqd) as producer:
        is_over = threading.Event()

        def publish() -> int:
            published = 0
            while not is_over.is_set():
                producer.publish("t", b"parent")
                published += 1
            return published

        def work() -> None:
            with producer_of(nsqd) as own, producer:
                own.publish("t", b"child")
                producer.publish("t", b"child")

        publishing = [start(publish) for _ in range(4)]
        for _ in range(5):
            in_child(work)
        is_over.set()
        published = sum(future.result(WAIT_LIMIT) for future in publishing)
    assert count(nsqd) == published + 10


def test_children_have_children(nsqd):
    producer = producer_of(nsqd)

    def work() -> None:
        with producer:
            in_child(leaf)
            producer.publish("t", b"child")

    def leaf() -> None:
        with producer:
            producer.publish("t", b"grandchild")

    with producer:
        in_child(work)
        producer.publish("t", b"parent")
    assert count(nsqd) == 3


def publish_from_a_pool(address: str) -> int:
    with BlockingProducer(address) as producer:
        producer.publish("t", b"child")
    return os.getpid()


def test_processes_of_multiprocessing_publish(nsqd):
    with producer_of(nsqd) as producer:
        producer.publish("t", b"parent")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pids = pool.map_async(publish_from_a_pool, [nsqd.tcp_address] * 6, chunksize=1).get(WAIT_LIMIT)
        producer.publish("t", b"parent")
    assert os.getpid() not in pids
    assert count(nsqd) == 8


def test_stop_signal_ends_processes_of_multiprocessing(nsqd):
    context = multiprocessing.get_context("fork")
    consumer = BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], stop_signals=[signal.SIGTERM])
    begun = context.Event()

    def work() -> None:
        begun.set()
        threading.Event().wait()

    with consumer:
        process = context.Process(target=work)
        process.start()
        assert begun.wait(WAIT_LIMIT)
        process.terminate()
        process.join(WAIT_LIMIT)
        code = process.exitcode
        process.kill()
        process.join(WAIT_LIMIT)
    assert code == -signal.SIGTERM


PROGRAM = """
import logging, os, sys
from nsqkit import BlockingConsumer, BlockingProducer

logging.getLogger("asyncio").setLevel(logging.ERROR)  # on a busy machine it warns of slow callbacks
address = sys.argv[1]
producer = BlockingProducer(address, dial_timeout=10).open()
consumer = BlockingConsumer("t", "c", nsqd_tcp_addresses=[address], dial_timeout=10).open()
consumer.wait_connected()
producer.publish("t", b"parent")
if os.fork() == 0:
    sys.exit(0)  # with all the clean-up of a program that ends
_, status = os.wait()
assert status == 0, status
consumer.receive(10).finish()
producer.publish("t", b"parent")
consumer.close()
producer.close()
"""


@pytest.mark.parametrize("is_fast", [False, True], ids=["asyncio", "uvloop"])
def test_child_that_ends_normally_prints_and_breaks_nothing(nsqd, is_fast):
    if is_fast:
        pytest.importorskip("uvloop")
    without = "" if is_fast else "import sys; sys.modules['uvloop'] = None\n"
    command = [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", without + PROGRAM]
    run = subprocess.run(
        [*command, nsqd.tcp_address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert count(nsqd) == 2
