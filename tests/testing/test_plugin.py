"""The fixtures, used by their names as by a user; in a run of pytest of their own where a test has to fail."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from nsqkit import Consumer, Producer
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from nsqkit.wire.names import is_valid_name
from tests.runners import Run

pytest_plugins = "pytester"

RunTests: TypeAlias = Callable[..., pytest.RunResult]


@pytest.fixture
def run_tests(pytester: pytest.Pytester) -> RunTests:
    """Run the tests of a text by pytest, with arguments; a test that logs an error fails."""
    pytester.makeini("[pytest]\nstrict = true\nfilterwarnings = error")

    def run_tests(text: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:trio", *arguments)

    return run_tests


def test_a_plain_test_has_a_broker(nsqd: NsqdServer) -> None:
    assert nsqd.inspect(lambda broker: broker.topics) == {}


@pytest.mark.anyio
async def test_async_test_has_a_broker_on_either_backend(nsqd: NsqdServer) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish("t", b"x")
    async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
        message = await anext(aiter(consumer))
        assert message.body == b"x"
        message.finish()


def test_program_has_a_broker_however_it_is_run(nsqd: NsqdServer, nsqlookupd: NsqlookupdServer, run: Run) -> None:
    async def main() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish("t", b"x")
        async with Consumer(
            "t",
            "c",
            nsqd_tcp_addresses=[nsqd.tcp_address],
            lookupd_http_addresses=[nsqlookupd.http_address],
        ) as consumer:
            message = await anext(consumer)
            assert message.body == b"x"
            message.finish()

    run(main)


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_new_broker(nsqd: NsqdServer, turn: int) -> None:
    assert nsqd.inspect(lambda broker: list(broker.topics)) == []
    nsqd.inspect(lambda broker: broker.topics.get_or_create(b"t"))


def test_a_plain_test_has_an_nsqlookupd(nsqlookupd: NsqlookupdServer) -> None:
    assert nsqlookupd.inspect(lambda registry: registry.topics()) == []
    assert nsqlookupd.http_url.startswith("http://127.0.0.1:")


def test_plugin_imports_nothing_without_a_fixture() -> None:
    code = (
        "import sys, pytest, nsqkit.testing.plugin;"
        "print([name for name in sys.modules if name.partition('.')[0] in ('anyio', 'trio', 'h11', 'pyspark')"
        " or name.startswith('nsqkit.') and not name.startswith('nsqkit.testing')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


# ---- markers --------------------------------------------------------------------------------------------------------


def test_nearest_marker_gives_the_options(run_tests: RunTests) -> None:
    run_tests(
        """
        import pytest

        pytestmark = pytest.mark.nsqd(max_rdy_count=3, max_msg_size=30)

        def test_module(nsqd):
            assert nsqd.inspect(lambda broker: broker.options.max_rdy_count) == 3

        @pytest.mark.nsqd(max_rdy_count=2)
        class TestClass:
            @pytest.mark.nsqd(max_rdy_count=1)
            def test_method(self, nsqd):
                options = nsqd.inspect(lambda broker: broker.options)
                assert (options.max_rdy_count, options.max_msg_size) == (1, 30)

        @pytest.mark.nsqlookupd(broadcast_address="lookup.test")
        def test_nsqlookupd(nsqlookupd):
            pass
        """
    ).assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        ("nsqd(max_rdy_count=-1)", "*max_rdy_count is -1; allowed is *"),
        ("nsqd(max_ready_count=1)", "*max_ready_count*"),
        ("nsqd('2s')", "*has values without names; allowed is name=value"),
        ("nsqd(leaks=False)", "*leaks is False; allowed is 'strict' or 'allow'"),
        ("nsqlookupd(msg_timeout=1)", "*msg_timeout*"),
    ],
    ids=["value", "name", "no name", "leaks", "nsqlookupd"],
)
def test_wrong_option_of_a_marker_is_an_error_at_its_line(run_tests: RunTests, marker: str, error: str) -> None:
    fixture = marker.partition("(")[0]
    result = run_tests(f"import pytest\n\n\n@pytest.mark.{marker}\ndef test_it({fixture}):\n    pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*test_wrong_option_of_a_marker*.py:4: @pytest.mark.{fixture}: {error}"])


# ---- options of the run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--nsqd=remote", "--nsqd-scope=class"])
def test_wrong_option_of_the_run_is_refused(run_tests: RunTests, option: str) -> None:
    result = run_tests("def test_it(): pass", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_address_that_no_nsqd_can_have_is_named(run_tests: RunTests) -> None:
    result = run_tests("def test_it(nsqd): pass", "--nsqd=127.0.0.1:99999", "--nsqd-scope=session")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["--nsqd: address '127.0.0.1:99999' is not host:port with a port of 0 to 65535"])


def test_session_has_one_broker(run_tests: RunTests) -> None:
    run_tests(
        """
        import pytest

        addresses = set()

        @pytest.mark.parametrize("turn", [1, 2])
        def test_turn(nsqd, nsqlookupd, turn):
            addresses.add((nsqd.tcp_address, nsqlookupd.tcp_address))
            assert len(addresses) == 1
        """,
        "--nsqd-scope=session",
    ).assert_outcomes(passed=2)


def test_test_that_needs_more_than_the_backend_can_do_is_skipped(run_tests: RunTests) -> None:
    result = run_tests(
        """
        import unittest

        import pytest
        from nsqkit.testing.errors import ServerState, Unsupported

        @pytest.fixture
        def journal(nsqd):
            raise Unsupported("there is no journal")

        def test_setup(journal):
            pass

        def test_call(nsqd):
            raise Unsupported("there is no clock")

        def test_group(nsqd):
            raise ExceptionGroup("", [ExceptionGroup("", [Unsupported("there is no disk")])])

        def test_other_error(nsqd):
            raise ExceptionGroup("", [Unsupported("there is no disk"), ServerState("it is stopped")])

        class TestPlain(unittest.TestCase):
            def test_it(self):
                raise Unsupported("there is no snapshot")

        class TestAsync(unittest.IsolatedAsyncioTestCase):
            async def test_it(self):
                raise Unsupported("there is no engine")
        """,
        "-rs",
    )
    result.assert_outcomes(skipped=5, failed=1)
    things = ("journal", "clock", "disk", "snapshot", "engine")
    result.stdout.fnmatch_lines_random([f"SKIPPED*there is no {thing}" for thing in things])


# ---- the other fixtures ---------------------------------------------------------------------------------------------


def test_factory_makes_brokers_with_options(make_nsqd: Callable[..., NsqdServer]) -> None:
    one, other = make_nsqd(max_rdy_count=1), make_nsqd()
    assert one.inspect(lambda broker: broker.options.max_rdy_count) == 1
    assert other.tcp_address != one.tcp_address


@pytest.mark.parametrize("turn", ["a b", "ä/#"])
def test_topic_is_new_and_has_the_name_of_the_test(nsq_topic: str, turn: str) -> None:
    assert is_valid_name(nsq_topic.encode())
    assert nsq_topic.startswith("test_topic_is_new_and_has_the_name_of_the_test_")


# ---- leaks ----------------------------------------------------------------------------------------------------------

LEAKING = """
import socket
import pytest
from nsqkit import BlockingConsumer, BlockingProducer
from nsqkit.transport.address import split_address

kept = []

@pytest.fixture(scope="module", autouse=True)
def close():
    yield
    for client in kept:
        client.close()

def consume(nsqd, finish=False):
    nsqd.publish("t", b"x")
    with BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
        message = next(iter(consumer))
        if finish:
            message.finish()

def connect(nsqd):
    client = socket.create_connection(split_address(nsqd.tcp_address))
    kept.append(client)
    client.sendall(b"  V2SUB t c\\nRDY 2\\n")
    nsqd.wait_connected()
    return client
"""


def test_open_connection_and_its_messages_are_leaks(run_tests: RunTests) -> None:
    result = run_tests(
        LEAKING
        + """
def test_it(nsqd):
    nsqd.publish("t", b"x", b"y")
    connect(nsqd)
    nsqd.wait_for(lambda: nsqd.topic("t").channel("c").in_flight == 2)
"""
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*the client of t/c at 127.0.0.1:* is still connected: close it before the test ends",
            "*2 messages are in flight to the client of t/c at *: finish or requeue them before the test ends",
            '*@pytest.mark.nsqd(leaks="allow")*',
            "*entries of the journal*",
            "*SUB*",
        ]
    )


def test_blocking_client_is_a_leak(run_tests: RunTests) -> None:
    result = run_tests(
        LEAKING
        + """
def test_it(nsqd):
    kept.append(BlockingProducer("127.0.0.1:1").open())
"""
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*a blocking client of nsqkit has tasks in the thread of the event loop: close each of them"]
    )


@pytest.mark.parametrize(
    "test",
    [
        "nsqd.publish('t', b'x', defer=60)",
        "nsqd.publish('t', b'x'); connect(nsqd).close()",
        "with BlockingProducer(nsqd.tcp_address) as producer: producer.publish('t', b'x')",
        "consume(nsqd, finish=True)",
        "consume(nsqd)",
        "nsqd.publish('t', b'x'); client = connect(nsqd); client.recv(100); client.close()",
        "nsqd.faults.half_open(); connect(nsqd).close()",
        "connect(nsqd); nsqd.stop()",
        "connect(nsqd); nsqd.kill()",
        "connect(nsqd); nsqd.reset()",
    ],
    ids=[
        "messages",
        "closed",
        "producer",
        "consumer",
        "unanswered",
        "in flight",
        "hidden end",
        "stop",
        "kill",
        "reset",
    ],
)
def test_correct_test_leaves_nothing_to_report(run_tests: RunTests, tmp_path: Path, test: str) -> None:
    log = tmp_path / "log"
    options = [f"--log-file={log}", "--log-file-level=WARNING"]
    run_tests(LEAKING + f"\ndef test_it(nsqd):\n    {test}\n", *options).assert_outcomes(passed=1)
    assert log.read_text() == ""


def test_server_of_another_fixture_is_no_leak(run_tests: RunTests) -> None:
    run_tests(
        """
        def test_it(make_nsqd, nsqd, nsq_cluster):
            make_nsqd()
        """
    ).assert_outcomes(passed=1)


def test_nsqlookupd_stops_after_the_nsqds_that_are_registered_with_it(run_tests: RunTests, tmp_path: Path) -> None:
    log = tmp_path / "log"
    test = """
        def test_it(make_nsqd, nsqlookupd):
            nsqd = make_nsqd(lookupd_tcp_address=[nsqlookupd.tcp_address])
            nsqd.publish("t", b"x")
            nsqd.wait_for(lambda: nsqlookupd.registry.producers("t"))
    """
    run_tests(textwrap.dedent(test), f"--log-file={log}", "--log-file-level=WARNING").assert_outcomes(passed=1)
    assert log.read_text() == ""


def test_leaks_are_allowed_by_the_marker_and_not_reported_for_a_failed_test(run_tests: RunTests) -> None:
    run_tests(
        LEAKING
        + """
@pytest.mark.nsqd(leaks="allow")
def test_waived(nsqd):
    connect(nsqd)

def test_failed(nsqd):
    connect(nsqd)
    assert False

def test_factory(make_nsqd):
    make_nsqd()
    connect(make_nsqd())
"""
    ).assert_outcomes(passed=2, failed=1, errors=1)


@pytest.mark.parametrize("scope", ["function", "session"])
def test_leaks_of_an_interrupted_test_do_not_replace_the_summary(run_tests: RunTests, scope: str) -> None:
    result = run_tests(
        LEAKING
        + """
def test_it(nsqd):
    connect(nsqd)
    pytest.exit("interrupted here")
""",
        f"--nsqd-scope={scope}",
    )
    assert result.ret is pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*interrupted here*"])


def test_test_that_runs_again_is_checked_and_shows_its_journal(run_tests: RunTests) -> None:
    result = run_tests(
        LEAKING
        + """
@pytest.mark.flaky(reruns=1)
def test_failed_again(nsqd):
    connect(nsqd).close()
    assert False

@pytest.mark.flaky(reruns=1)
def test_leak_when_it_runs_again(nsqd, runs=[]):
    connect(nsqd)
    runs.append(1)
    assert len(runs) == 2
"""
    )
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*is still connected*", "*FAILURES*", "*journal*", "*SUB*"])


# ---- report ---------------------------------------------------------------------------------------------------------


def test_failed_test_shows_the_journal_and_the_faults(run_tests: RunTests) -> None:
    result = run_tests(
        LEAKING
        + """
def test_it(nsqd):
    nsqd.faults.delay(1, command="FIN")
    connect(nsqd).close()
    nsqd.wait_for(lambda: not nsqd.open_clients)
    assert False
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*journal*", "*SUB*t*c*", "*faults*", "seed 0", "*delay*has applied 0 times"])


def test_failed_test_shows_each_server_of_a_cluster(run_tests: RunTests) -> None:
    result = run_tests(
        """
        def test_it(nsq_cluster):
            nsq_cluster.partition(2)
            nsq_cluster.partition(nsq_cluster.nsqlookupds[1])
            assert False
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*nsqd *: faults*", "*silence*", "*nsqlookupd *: faults*", "*silence*"])


# ---- session --------------------------------------------------------------------------------------------------------


def test_servers_of_the_session_are_reset_after_each_test(run_tests: RunTests) -> None:
    result = run_tests(
        LEAKING
        + """
@pytest.mark.parametrize("end", ["publish", "stop", "leak", "nothing"])
def test_it(nsqd, nsqd_auth, nsqlookupd, end):
    assert not nsqd.topics and not nsqd.open_clients and not nsqlookupd.registry.topics
    nsqd.publish("t", b"x")
    nsqlookupd.faults.status(500)
    nsqd_auth.auth.grant("secret")
    if end == "stop":
        nsqd.stop()
    if end == "leak":
        connect(nsqd)

@pytest.mark.nsqd(msg_timeout=1)
def test_marker(nsqd):
    pass

@pytest.mark.nsqlookupd(tombstone_lifetime=1)
def test_marker_of_nsqlookupd(nsqlookupd):
    pass

@pytest.mark.nsqd(msg_timeout=1, leaks="allow")
def test_factory(make_nsqd):
    connect(make_nsqd(msg_timeout=1))
""",
        "--nsqd-scope=session",
    )
    result.assert_outcomes(passed=5, errors=3)
    result.stdout.fnmatch_lines(["*msg_timeout: allowed with nsqd_scope=function only, or for make_nsqd"])


def test_server_that_starts_in_a_test_of_the_session_is_checked_and_reset(run_tests: RunTests) -> None:
    result = run_tests(
        LEAKING
        + """
def test_leak(request):
    nsqd = request.getfixturevalue("nsqd")
    nsqd.publish("t", b"x")
    connect(nsqd)

def test_correct(request):
    request.getfixturevalue("nsqd_auth").publish("t", b"x")
    request.getfixturevalue("nsqlookupd").faults.status(500)

def test_next(nsqd, nsqd_auth, nsqlookupd):
    assert not nsqd.topics and not nsqd_auth.topics and not nsqlookupd.faults.active
""",
        "--nsqd-scope=session",
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_leak*"])
