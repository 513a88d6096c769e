"""The nodes of a spec, and the messages of its channel, from nsqlookupds and nsqds on real ports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import anyio
import pytest

from nsqkit import Consumer
from nsqkit.errors import RequestFailed
from nsqkit.spark.batch_plan import SourceNode
from nsqkit.spark.discovery import Backlog, Discovery
from nsqkit.spark.options import ConsumerSpec
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from tests.answering import unused_address


class Clock:
    """A clock that stands until a test moves it."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns

    def advance(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def lookupds(running: ExitStack) -> list[NsqlookupdServer]:
    return [running.enter_context(NsqlookupdServer()) for _ in range(2)]


def start_nsqd(running: ExitStack, lookupds: list[NsqlookupdServer], topics: list[str]) -> NsqdServer:
    """Start an nsqd, and return it when the nsqlookupds list its topics."""
    addresses = [lookupd.tcp_address for lookupd in lookupds]
    nsqd = running.enter_context(NsqdServer(lookupd_tcp_address=addresses, broadcast_address="127.0.0.1"))
    for topic in topics:
        nsqd.publish(topic, b"one")
        for lookupd in lookupds:
            while nsqd.tcp_address not in [node.tcp_address for node in lookupd.registry.producers(topic)]:
                pass
    return nsqd


def looked_up(lookupds: list[NsqlookupdServer], **options: Any) -> ConsumerSpec:
    addresses = [lookupd.http_address for lookupd in lookupds]
    return ConsumerSpec(**{"topics": "t", "channel": "c", "lookupd_http_addresses": addresses, **options})


def named(nsqds: list[NsqdServer], **options: Any) -> ConsumerSpec:
    return ConsumerSpec(
        topics=options.pop("topics", "t"),
        channel="c",
        nsqd_tcp_addresses=[nsqd.tcp_address for nsqd in nsqds],
        nsqd_http_addresses=[nsqd.http_address for nsqd in nsqds],
        **options,
    )


def create_channel(nsqd: NsqdServer, topic: str = "t") -> None:
    nsqd.inject(topic, b"waiting", channel="c")


def test_named_nsqds_are_nodes_without_a_request() -> None:
    address = anyio.run(unused_address)
    spec = ConsumerSpec(topics=["t", "u"], channel="c", nsqd_tcp_addresses=[address])
    assert Discovery(spec).nodes() == (SourceNode(address, "t"), SourceNode(address, "u"))


def test_nodes_are_the_union_of_all_nsqlookupds(running: ExitStack, lookupds: list[NsqlookupdServer]) -> None:
    first = start_nsqd(running, lookupds[:1], ["t"])
    second = start_nsqd(running, lookupds[1:], ["t", "u"])
    both = start_nsqd(running, lookupds, ["u"])
    nodes = Discovery(looked_up(lookupds, topics=["t", "u"])).nodes()
    assert sorted(nodes) == sorted(
        [
            SourceNode(first.tcp_address, "t"),
            SourceNode(second.tcp_address, "t"),
            SourceNode(second.tcp_address, "u"),
            SourceNode(both.tcp_address, "u"),
        ]
    )


def test_a_topic_that_does_not_exist_has_no_nodes(lookupds: list[NsqlookupdServer]) -> None:
    discovery = Discovery(looked_up(lookupds))
    assert discovery.nodes() == ()
    assert discovery.backlog() is None


def test_a_list_is_used_for_five_seconds(running: ExitStack, lookupds: list[NsqlookupdServer]) -> None:
    clock = Clock()
    discovery = Discovery(looked_up(lookupds), clock)
    assert discovery.nodes() == ()
    nsqd = start_nsqd(running, lookupds, ["t"])
    clock.advance(4.9)
    assert discovery.nodes() == ()
    clock.advance(0.1)
    assert discovery.nodes() == (SourceNode(nsqd.tcp_address, "t"),)


def test_the_last_list_stays_while_nsqlookupds_fail(
    running: ExitStack, lookupds: list[NsqlookupdServer], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    nsqds = [start_nsqd(running, [lookupd], ["t"]) for lookupd in lookupds]
    discovery = Discovery(looked_up(lookupds), clock)
    known = discovery.nodes()
    assert {node.nsqd_address for node in known} == {nsqd.tcp_address for nsqd in nsqds}
    lookupds[0].stop()
    clock.advance(5)
    assert discovery.nodes() == known
    lookupds[1].stop()
    clock.advance(5)
    assert discovery.nodes() == known
    assert "no nsqlookupd has answered, so the last list of nsqds stays" in caplog.text


def test_one_nsqlookupd_that_answers_is_enough(running: ExitStack, lookupds: list[NsqlookupdServer]) -> None:
    nsqd = start_nsqd(running, lookupds, ["t"])
    lookupds[0].stop()
    assert Discovery(looked_up(lookupds)).nodes() == (SourceNode(nsqd.tcp_address, "t"),)


def test_no_answer_at_all_is_an_error() -> None:
    address = anyio.run(unused_address)
    discovery = Discovery(ConsumerSpec(topics="t", channel="c", lookupd_http_addresses=[f"http://u:s3cret@{address}"]))
    for find in (discovery.nodes, discovery.backlog):
        with pytest.raises(RequestFailed, match=r"^no nsqlookupd has answered: http://127") as caught:
            find()
        assert "s3cret" not in str(caught.value)


def test_an_address_map_replaces_tcp_addresses_only(running: ExitStack, lookupds: list[NsqlookupdServer]) -> None:
    nsqd = start_nsqd(running, lookupds, ["t"])
    create_channel(nsqd)
    spec = looked_up(lookupds, connection={"address_map": {nsqd.tcp_address: "elsewhere:4150"}})
    discovery = Discovery(spec)
    assert discovery.nodes() == (SourceNode("elsewhere:4150", "t"),)
    assert discovery.backlog() is not None


def test_the_messages_of_all_nsqds_and_topics_are_counted(running: ExitStack) -> None:
    nsqds = [running.enter_context(NsqdServer()) for _ in range(2)]
    for nsqd in nsqds:
        for topic in ("t", "u", "other"):
            create_channel(nsqd, topic)
    nsqds[1].inject("u", b"deferred", channel="c", deferred=60)
    nsqds[1].inject("u", b"elsewhere", channel="other")
    assert Discovery(named(nsqds, topics=["t", "u"])).backlog() == Backlog(
        depth=4, in_flight=0, deferred=1, finished_count=0
    )


def test_a_program_with_an_event_loop_finds_messages_in_flight(running: ExitStack) -> None:
    nsqd = running.enter_context(NsqdServer())
    create_channel(nsqd)

    async def consume() -> Backlog | None:
        async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
            async for _ in consumer:
                return Discovery(named([nsqd])).backlog()
        raise AssertionError

    assert anyio.run(consume) == Backlog(depth=0, in_flight=1, deferred=0, finished_count=0)


def test_finished_messages_are_counted_and_requeued_ones_are_not(running: ExitStack) -> None:
    nsqd = running.enter_context(NsqdServer())
    create_channel(nsqd)
    nsqd.inject("t", b"two", channel="c")

    async def consume() -> None:
        async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
            (await anext(consumer)).finish()
            (await anext(consumer)).requeue(60)

    anyio.run(consume)
    assert Discovery(named([nsqd])).backlog() == Backlog(depth=0, in_flight=0, deferred=1, finished_count=1)


def test_the_messages_are_found_at_listed_nsqds(running: ExitStack, lookupds: list[NsqlookupdServer]) -> None:
    nsqd = start_nsqd(running, lookupds, ["t"])
    create_channel(nsqd)
    found = Discovery(looked_up(lookupds)).backlog()
    assert found is not None
    assert found.depth >= 1


def test_messages_are_unknown_before_the_channel_exists(running: ExitStack) -> None:
    nsqds = [running.enter_context(NsqdServer()) for _ in range(2)]
    create_channel(nsqds[0])
    discovery = Discovery(named(nsqds))
    assert discovery.backlog() is None
    create_channel(nsqds[1])
    assert discovery.backlog() == Backlog(depth=2, in_flight=0, deferred=0, finished_count=0)


def test_messages_are_unknown_without_http_addresses(running: ExitStack, lookupds: list[NsqlookupdServer]) -> None:
    nsqd = running.enter_context(NsqdServer())
    spec = ConsumerSpec(topics="t", channel="c", nsqd_tcp_addresses=[nsqd.tcp_address])
    assert Discovery(spec).backlog() is None


def test_messages_are_unknown_if_one_nsqd_does_not_answer(running: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    nsqds = [running.enter_context(NsqdServer()) for _ in range(2)]
    for nsqd in nsqds:
        create_channel(nsqd)
    discovery = Discovery(named(nsqds))
    nsqds[1].stop()
    assert discovery.backlog() is None
    assert discovery.backlog() is None
    assert caplog.text.count("the messages of an nsqd are not known") == 1
    nsqds[1].start()
    create_channel(nsqds[1])
    assert discovery.backlog() is not None
