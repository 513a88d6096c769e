"""Brokers, the present fault, and a table of the outcomes at the end of the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from nsqkit.admin import NsqdAdmin
from nsqkit.testing import NsqdServer
from tests.spark_chaos.fault_points import VARIABLE, Fault
from tests.spark_chaos.stream import CHANNEL, QUERY_SECONDS, TOPIC, Job, Outcome, count

INJECT = Path(__file__).parent / "inject"

COUNT = 20_000
"""Messages of each test, in even shares on two brokers."""

RUNS_MAX = 5
"""Runs of a query until all messages have arrived; the messages of a dead worker time out between two."""

OUTCOME = "messages lost and duplicated"
"""The property of a test's report with its outcome; the tests may run in several processes."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the outcome of each test."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    if lines := [line for report in reports for name, line in report.user_properties if name == OUTCOME]:
        terminalreporter.section(OUTCOME)
        for line in lines:
            terminalreporter.line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Permit clients that a test has killed to leave messages in flight."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.nsqd(leaks="allow"))


@pytest.fixture(scope="session")
def fault_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of the present fault; processes that start from now on have the fault points."""
    path = tmp_path_factory.mktemp("fault") / "fault.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(path))
        patch.setattr(sys, "path", [str(INJECT), os.getcwd(), *sys.path])
        yield path


@pytest.fixture(scope="session")
def spark_session(fault_file: Path, spark_session: Any) -> object:
    """The session, with workers that have the fault points."""
    return spark_session


@pytest.fixture
def inject(fault_file: Path, tmp_path: Path) -> Iterator[Callable[..., Fault]]:
    """A function that sets the fault of this test."""

    def inject(point: str, action: str, **options: int) -> Fault:
        fault = Fault(point, action, str(tmp_path / "acted"), **options)
        fault.write(fault_file)
        return fault

    yield inject
    fault_file.unlink(missing_ok=True)


@pytest.fixture
def run_in_thread() -> Callable[..., AbstractContextManager[object]]:
    """A function that runs another one in a thread; the end of ``with`` waits for it, and raises its error."""

    @contextmanager
    def run_in_thread(function: Callable[..., object], *arguments: object) -> Iterator[None]:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(function, *arguments)
            yield
            future.result(QUERY_SECONDS)

    return run_in_thread


@attrs.frozen
class Nodes:
    """Two nsqds with messages, and the outcome of a test."""

    nsqds: list[NsqdServer]
    published: set[bytes]
    test: str
    record_property: Callable[[str, object], None]

    @property
    def options(self) -> dict[str, object]:
        """The options of the source that name the nsqds."""
        return {
            "nsqd.addresses": ",".join(nsqd.tcp_address for nsqd in self.nsqds),
            "nsqd.http.addresses": ",".join(nsqd.http_address for nsqd in self.nsqds),
        }

    def sum(self, name: str) -> int:
        """Return a count of the channel, over all nsqds that run: ``depth``, ``timeout_count``, …"""
        running = [nsqd for nsqd in self.nsqds if nsqd.is_running]
        return sum(getattr(nsqd.topic(TOPIC).channel(CHANNEL), name) for nsqd in running)

    def wait_for(self, condition: Callable[[], object], timeout: float = 60) -> None:
        """Return when a condition holds; an AssertionError after ``timeout`` real seconds has the state."""
        self.nsqds[0].wait_for(condition, timeout=timeout)

    def wait_none_held(self) -> None:
        """Return when the messages of dead consumers have timed out, and those with a delay have come due."""
        self.wait_for(lambda: not self.sum("in_flight") + self.sum("deferred"))

    @property
    def rest(self) -> int:
        """Messages that are not finished."""
        return self.sum("depth") + self.sum("in_flight") + self.sum("deferred")

    def drain(self, run: Callable[[], object]) -> None:
        """Run a query until no message is left."""
        for _ in range(RUNS_MAX):
            run()
            self.wait_none_held()
            if not self.rest:
                return
        pytest.fail(f"{RUNS_MAX} runs have left {self.rest} messages")

    def check(self, job: Job) -> Outcome:
        """Compare the rows with the messages: none lost, none twice."""
        outcome = count(job.lake, self.published)
        redelivered = self.sum("timeout_count") + self.sum("requeue_count")
        self.record_property(OUTCOME, f"{outcome}  {redelivered:6} delivered again  {self.test}")
        return outcome


@pytest.fixture
def nodes(
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
    make_nsqd: Callable[..., NsqdServer],
) -> Nodes:
    """Two nsqds with ``COUNT`` messages. The channel exists before they are published."""
    nsqds = [make_nsqd(journal=False) for _ in range(2)]
    nodes = Nodes(nsqds, set(), request.node.name, record_property)
    for number, nsqd in enumerate(nsqds):
        publish(nodes, nsqd, f"node-{number}", COUNT // len(nsqds))
    return nodes


def publish(nodes: Nodes, nsqd: NsqdServer, name: str, count: int, size: int = 200) -> None:
    """Publish messages whose bodies differ, of ``size`` bytes, to a channel that exists."""
    admin = NsqdAdmin(nsqd.http_address)
    anyio.run(admin.create_topic, TOPIC)
    anyio.run(admin.create_channel, TOPIC, CHANNEL)
    bodies = [f"{name}-{number} ".encode().ljust(size, b".") for number in range(count)]
    nodes.published.update(bodies)
    for start in range(0, count, 100):
        nsqd.publish(TOPIC, *bodies[start : start + 100])
