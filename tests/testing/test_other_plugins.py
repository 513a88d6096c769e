"""The fixtures beside other plugins of pytest, each in a process of its own, as users have them."""

from __future__ import annotations

import pytest

pytest_plugins = "pytester"

USE = """
import pytest
from nsqkit import Consumer, Producer

async def use(nsqd):
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish("t", b"x")
    async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
        message = await anext(aiter(consumer))
        message.finish()
    await nsqd.clock.advance(60)
    assert nsqd.topic("t").message_count == 1
"""

PLUGINS = {
    "asyncio": """
@pytest.mark.asyncio
async def test_it(nsqd, nsqlookupd, make_nsqd):
    await use(nsqd)
    await use(make_nsqd())
""",
    "trio": """
@pytest.mark.trio
async def test_it(nsqd, nsqlookupd, make_nsqd):
    await use(nsqd)
    await use(make_nsqd())
""",
    "anyio": """
@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param

@pytest.mark.anyio
async def test_it(nsqd, nsqlookupd, make_nsqd):
    await use(nsqd)
    await use(make_nsqd())
""",
}


@pytest.mark.parametrize("scope", ["function", "session"])
@pytest.mark.parametrize("plugin", PLUGINS)
def test_fixtures_work_with_the_plugin(pytester: pytest.Pytester, plugin: str, scope: str) -> None:
    keys = ["strict = true", "filterwarnings = error", f"nsqd_scope = {scope}"]
    if plugin == "asyncio":
        keys.append("asyncio_default_fixture_loop_scope = function")
    pytester.makeini("\n".join(["[pytest]", *keys]))
    pytester.makepyfile(USE + PLUGINS[plugin])
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *without({"asyncio", "trio"} - {plugin}))
    result.assert_outcomes(passed=2 if plugin == "anyio" else 1)


def test_workers_of_xdist_have_brokers_and_topics_of_their_own(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nstrict = true\nfilterwarnings = error")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("turn", range(8))
        def test_it(nsqd, nsq_topic, turn):
            nsqd.publish(nsq_topic, b"x")
            assert list(nsqd.topics) == [nsq_topic]
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *without({"asyncio", "trio"}), "-n", "2")
    result.assert_outcomes(passed=8)


def without(plugins: set[str]) -> list[str]:
    """Return the arguments that switch plugins of pytest off."""
    return [word for plugin in sorted(plugins) for word in ("-p", f"no:{plugin}")]
