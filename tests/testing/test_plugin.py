"""The fixtures, used by their names as by a user; in a run of pytest of their own where a test has to fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
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
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly", *arguments)

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


# ---- the other fixtures ---------------------------------------------------------------------------------------------


def test_factory_makes_brokers_with_options(make_nsqd: Callable[..., NsqdServer]) -> None:
    one, other = make_nsqd(max_rdy_count=1), make_nsqd()
    assert one.inspect(lambda broker: broker.options.max_rdy_count) == 1
    assert other.tcp_address != one.tcp_address


@pytest.mark.parametrize("turn", ["a b", "ä/#"])
def test_topic_is_new_and_has_the_name_of_the_test(nsq_topic: str, turn: str) -> None:
    assert is_valid_name(nsq_topic.encode())
    assert nsq_topic.startswith("test_topic_is_new_and_has_the_name_of_the_test_")
