from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nsqkit.errors import OptionError, RequestRefused
from nsqkit.testing.errors import StartFailed, Unsupported
from nsqkit.testing.external import ExternalNsqd
from nsqkit.testing.servers import NsqdServer

pytestmark = pytest.mark.anyio


@contextmanager
def external(nsqd: NsqdServer) -> Iterator[ExternalNsqd]:
    made = ExternalNsqd("somewhere")
    made.tcp_address, made.http_address = nsqd.tcp_address, nsqd.http_address
    yield made


async def test_messages_are_published_by_http(nsqd: NsqdServer) -> None:
    with external(nsqd) as there:
        await there.publish("t", [b"one", b"two"], None)
        await there.publish("t", [b"three"], 60)
        assert [message.body for message in nsqd.messages("t")] == [b"one", b"two", b"three"]
        state = await there.state()
        assert state.topics["t"].depth == 3
        for topic, bodies in (("t t", [b"x"]), ("t", [])):
            with pytest.raises(OptionError):
                await there.publish(topic, bodies, None)
        with pytest.raises(RequestRefused):
            await there.publish("t", [b""], None)


async def test_topics_are_deleted_once(nsqd: NsqdServer) -> None:
    nsqd.publish("a", b"x")
    nsqd.publish("b", b"x")
    with external(nsqd) as there:
        assert await there.topic_names() == {"a", "b"}
        await there.delete_topics(["a", "a", "never"])
        assert await there.topic_names() == {"b"}
        await there.reset()
        assert await there.topic_names() == set()


async def test_answers_while_it_runs(nsqd: NsqdServer) -> None:
    with external(nsqd) as there:
        assert await there.answers()
        await there.wait_answers(60, lambda: None)
        await (await there.connect("client")).aclose()
        nsqd.stop()
        assert not await there.answers()
        looks: list[int] = []
        with pytest.raises(StartFailed, match=r"has not answered for 0\.01 s"):
            await there.wait_answers(0.01, lambda: looks.append(1))
        assert looks


async def test_broker_is_not_in_this_process() -> None:
    with pytest.raises(Unsupported, match="the backend 'somewhere'"):
        _ = ExternalNsqd("somewhere").nsqd
