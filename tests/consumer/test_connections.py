"""The connections of a running consumer: nsqds that are added, removed and lost."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from nsqkit import Consumer
from nsqkit.clock import ManualClock
from nsqkit.errors import Closed, NotConnected, OptionError
from tests.consumer.test_consumer import Bench, fin, in_memory, req
from tests.lookupds import BAD, NOT_FOUND, Lookupds, lists
from tests.peers import ScriptedBroker, body_of, settle

pytestmark = [pytest.mark.anyio, in_memory]


def bench_of(*addresses: str, **options: float) -> Bench:
    """Return a consumer of the first address, with brokers at all of them."""
    bench = Bench(list(addresses), **{"max_in_flight": 4, "close_timeout": 0, **options})
    for address in addresses[1:]:
        bench.consumer._connections.remove(address)
    return bench


async def test_an_nsqd_can_be_added():
    bench = bench_of("one:1", "two:1")
    async with bench.consumer as consumer, await bench.subscribe(4) as one:
        await consumer.wait_connected()
        consumer.connect_to_nsqd("two:1")
        consumer.connect_to_nsqd("two:1")
        assert list(consumer.unconnected) == ["two:1"]
        async with await bench.brokers["two:1"].subscribe() as two:
            await consumer.wait_connected()
            assert (await one.line(), await two.line()) == (b"RDY 2", b"RDY 2")
            assert bench.brokers["two:1"].dial_count == 1


async def test_log_lines_name_topic_and_channel(caplog):
    bench = Bench(["one:1"], close_timeout=0)
    bench.broker.refusal = ConnectionRefusedError()
    async with bench.consumer:
        await settle()
    record = next(record for record in caplog.records if record.name == "nsqkit.client")
    fields = vars(record)
    assert [fields[name] for name in ("nsqd_address", "topic", "channel")] == ["one:1", "t", "c"]
    assert record.getMessage().startswith("[t/c] [one:1] cannot connect to one:1")


async def test_nsqd_added_before_start_is_dialled_at_start():
    bench = bench_of("one:1", "two:1")
    bench.consumer.connect_to_nsqd("two:1")
    async with bench.consumer, await bench.broker.subscribe(), await bench.brokers["two:1"].subscribe():
        await bench.consumer.wait_connected()


async def test_begun_messages_can_be_answered_after_disconnect():
    bench = Bench(["one:1", "two:1"], max_in_flight=4)
    async with bench.consumer as consumer:
        async with await bench.broker.subscribe() as one:
            await settle()
            async with await bench.brokers["two:1"].subscribe() as two:
                await one.deliver(1, 2)
                begun = await anext(consumer)
                assert [await one.line(), await one.line(), await two.line()] == [
                    b"RDY 4",
                    b"RDY 2",
                    b"RDY 2",
                ]
                consumer.disconnect_from_nsqd("one:1")
                assert [await one.line() for _ in range(3)] == [b"RDY 0", req(2), b"CLS"]
                assert [stats.address for stats in consumer.stats().connections] == ["two:1", "one:1"]
                await one.dismiss()
                begun.finish()
                assert await one.line() == fin(1)
                await one.wait_end()
                await one.close()
                lines = [await two.line()]
                while lines[-1] != b"RDY 4":
                    lines.append(await two.line())
                await settle()
                assert [stats.address for stats in consumer.stats().connections] == ["two:1"]
                bench.clock.advance(50)
                await settle()
                assert bench.broker.dial_count == 1
                consumer.stop()
                assert [await two.line(), await two.line()] == [b"RDY 0", b"CLS"]
                await two.dismiss()
                await two.wait_end()


async def test_on_connection_may_disconnect():
    def on_connection(address: str, error: Exception | None) -> None:
        if error is None:
            bench.consumer.disconnect_from_nsqd(address)

    bench = Bench(["one:1"], on_connection=on_connection)
    async with bench.consumer as consumer, await bench.broker.subscribe() as one:
        lines = [await one.line()]
        while lines[-1] != b"CLS":
            lines.append(await one.line())
        assert lines[-2:] == [b"RDY 0", b"CLS"]
        await one.dismiss()
        await one.wait_end()
        await one.close()
        await settle()
        assert consumer.stats().connections == ()


async def test_unanswered_messages_are_requeued_after_disconnect():
    bench = Bench(["one:1", "two:1"], max_in_flight=2, close_timeout=20)
    async with bench.consumer as consumer, await bench.brokers["two:1"].subscribe():
        async with await bench.broker.subscribe() as one:
            await one.deliver(1)
            message = await anext(consumer)
            consumer.disconnect_from_nsqd("one:1")
            lines = [await one.line()]
            while lines[-1] != b"CLS":
                lines.append(await one.line())
            assert lines[-2:] == [b"RDY 0", b"CLS"]
            await settle()
            bench.clock.advance(20)
            assert await one.line() == req(1)
            await settle()
            bench.clock.advance(20)
            await one.wait_end()
        assert message.is_answered


async def test_reconnect_does_not_wait_for_the_closing_connection():
    bench = Bench(["one:1", "two:1"], max_in_flight=2, close_timeout=1000)
    bench.brokers["two:1"].hanging = True
    async with bench.consumer as consumer:
        first = await bench.broker.subscribe()
        await first.deliver(1)
        begun = await anext(consumer)
        consumer.disconnect_from_nsqd("one:1")
        consumer.connect_to_nsqd("one:1")
        async with await bench.broker.subscribe() as second:
            await second.deliver(2)
            (await anext(consumer)).finish()
            lines = [await second.line()]
            while lines[-1] != fin(2):
                lines.append(await second.line())
            begun.finish()
            lines = [await first.line()]
            while lines[-1] != fin(1):
                lines.append(await first.line())
            assert b"CLS" in lines
        await first.close()
        await settle()
        assert len(consumer.stats().connections) == 2


@pytest.mark.parametrize("state", ["dialling", "delayed", "handshake"])
async def test_disconnect_from_unconnected_nsqd_is_immediate(state):
    bench = Bench(["one:1", "two:1"], close_timeout=0)
    bench.broker.hanging = True
    other = bench.brokers["two:1"]
    other.hanging = state == "dialling"
    other.refusal = ConnectionRefusedError() if state == "delayed" else None
    async with bench.consumer as consumer:
        peer = await other.accept() if state == "handshake" else None
        await settle()
        consumer.disconnect_from_nsqd("two:1")
        assert list(consumer.unconnected) == ["one:1"]
        dial_count = other.dial_count
        await settle()
        bench.clock.advance(50)
        await settle()
        assert other.dial_count == dial_count
        if peer is not None:
            await peer.close()


async def test_listed_nsqd_is_connected_again_at_the_poll_after_a_disconnect():
    town = Town("a:1", "b:1", lookupd_http_addresses=["l:1"])
    town.lookupds.behaviours = {"l:1": lists("a:1", "b:1")}
    async with town.consumer as consumer, await town.nsqds["a:1"].subscribe():
        b = await town.nsqds["b:1"].subscribe()
        await consumer.wait_connected()
        consumer.disconnect_from_nsqd("b:1")
        await settle()
        await b.close()
        await settle()
        town.nsqds["b:1"].hanging = True
        await town.poll()
        assert town.nsqds["b:1"].dial_count == 2


async def test_disconnect_from_unknown_nsqd_is_refused():
    bench = Bench(["one:1"], close_timeout=0)
    bench.broker.hanging = True
    async with bench.consumer as consumer:
        with pytest.raises(OptionError, match="address is 'two:1', which is not an nsqd of this consumer"):
            consumer.disconnect_from_nsqd("two:1")


async def test_connect_checks_the_address_and_fails_after_stop():
    bench = Bench(["one:1"], close_timeout=0)
    bench.broker.hanging = True
    async with bench.consumer as consumer:
        with pytest.raises(OptionError, match="address 'two' is not host:port"):
            consumer.connect_to_nsqd("two")
        consumer.stop()
        with pytest.raises(Closed):
            consumer.connect_to_nsqd("two:1")


class TestListed:
    """nsqds that nsqlookupds list: they are dialled while they are listed."""

    async def test_connection_lasts_after_delisting_but_is_not_dialled_again(self):
        bench = bench_of("one:1", "two:1")
        other = bench.brokers["two:1"]
        async with bench.consumer as consumer, await bench.broker.subscribe():
            consumer._connections.set_listed(["two:1"])
            async with await other.subscribe() as two:
                await consumer.wait_connected()
                consumer._connections.set_listed([])
                await two.deliver(1)
                message = await anext(consumer)
                assert message.body == body_of(1)
                message.finish()
                lines = [await two.line()]
                while lines[-1] != fin(1):
                    lines.append(await two.line())
            await settle()
            bench.clock.advance(50)
            await settle()
            assert other.dial_count == 1
            assert [stats.address for stats in consumer.stats().connections] == ["one:1"]

    async def test_listed_nsqd_is_dialled_again_after_loss(self):
        bench = bench_of("one:1", "two:1")
        other = bench.brokers["two:1"]
        async with bench.consumer as consumer, await bench.broker.subscribe():
            consumer._connections.set_listed(["two:1"])
            async with await other.subscribe():
                await consumer.wait_connected()
            await settle()
            bench.clock.advance(50)
            async with await other.subscribe():
                await consumer.wait_connected()

    async def test_nsqd_listed_again_is_dialled_again_after_loss(self):
        bench = bench_of("one:1", "two:1")
        other = bench.brokers["two:1"]
        async with bench.consumer as consumer, await bench.broker.subscribe():
            consumer._connections.set_listed(["two:1"])
            async with await other.subscribe():
                await consumer.wait_connected()
                consumer._connections.set_listed([])
                consumer._connections.set_listed(["two:1"])
                await settle()
                assert other.dial_count == 1
            async with await other.subscribe():
                await consumer.wait_connected()

    async def test_unreachable_nsqd_is_dialled_only_while_listed(self):
        bench = bench_of("one:1", "two:1")
        other = bench.brokers["two:1"]
        other.refusal = ConnectionRefusedError()
        bench.broker.hanging = True
        async with bench.consumer as consumer:
            consumer._connections.set_listed(["two:1"])
            await settle()
            assert isinstance(consumer.unconnected["two:1"], NotConnected)
            consumer._connections.set_listed([])
            assert list(consumer.unconnected) == ["one:1"]
            dial_count = other.dial_count
            bench.clock.advance(50)
            await settle()
            assert other.dial_count == dial_count

    async def test_named_nsqd_is_dialled_without_end(self):
        bench = bench_of("one:1")
        async with bench.consumer as consumer:
            consumer._connections.set_listed(["one:1"])
            consumer._connections.set_listed([])
            async with await bench.broker.subscribe():
                await consumer.wait_connected()
            await settle()
            bench.clock.advance(50)
            async with await bench.broker.subscribe():
                await consumer.wait_connected()


class Town:
    """nsqds and nsqlookupds, and a consumer with two nsqlookupds."""

    def __init__(self, *nsqds: str, **options: Any) -> None:
        self.clock = ManualClock()
        self.nsqds = {address: ScriptedBroker() for address in nsqds}
        self.lookupds = Lookupds()
        options.setdefault("lookupd_http_addresses", ["l:1", "m:1"])
        self.consumer = Consumer(
            "t",
            "c",
            clock=self.clock,
            dial=lambda address: self.nsqds[address].dial(address),
            lookupd_http_request=self.lookupds,
            lookupd_poll_jitter=0,
            lookupd_poll_interval=10,
            close_timeout=0,
            **options,
        )

    def dialled(self) -> set[str]:
        """Return the nsqds that were dialled."""
        return {address for address, nsqd in self.nsqds.items() if nsqd.dial_count}

    async def poll(self) -> None:
        """Advance the clock by 10 seconds, and wait for the polls."""
        await settle()
        self.clock.advance(10)
        await settle()


class TestDiscovered:
    async def test_nsqds_of_all_nsqlookupds_are_consumed(self):
        town = Town("a:1", "b:1")
        town.lookupds.behaviours = {"l:1": lists("a:1"), "m:1": lists("b:1")}
        async with town.consumer as consumer:
            async with await town.nsqds["a:1"].subscribe(), await town.nsqds["b:1"].subscribe() as b:
                await consumer.wait_connected()
                await b.deliver(1)
                (await anext(consumer)).finish()
                assert {address for address, _ in town.lookupds.requests} == {"l:1", "m:1"}

    async def test_wait_connected_waits_for_a_first_nsqd(self):
        town = Town("a:1")
        town.lookupds.behaviours = {"l:1": lists(), "m:1": NOT_FOUND}
        async with town.consumer as consumer, anyio.create_task_group() as tasks:
            connected = anyio.Event()

            async def wait() -> None:
                await consumer.wait_connected()
                connected.set()

            tasks.start_soon(wait)
            await town.poll()
            assert not connected.is_set()
            town.lookupds.behaviours["l:1"] = lists("a:1")
            await town.poll()
            async with await town.nsqds["a:1"].subscribe():
                with anyio.fail_after(15):
                    await connected.wait()

    async def test_failed_polls_remove_no_nsqd(self):
        town = Town("a:1")
        town.lookupds.behaviours = {"l:1": lists("a:1")}
        async with town.consumer as consumer, await town.nsqds["a:1"].subscribe():
            town.lookupds.behaviours = {"l:1": BAD["500"]}
            await town.poll()
            assert [stats.address for stats in consumer.stats().connections] == ["a:1"]

    async def test_loss_of_listed_nsqd_starts_a_poll(self):
        town = Town("a:1")
        town.lookupds.behaviours = {"l:1": lists("a:1")}
        async with town.consumer as consumer:
            async with await town.nsqds["a:1"].subscribe():
                await consumer.wait_connected()
                asked = town.lookupds.count("l:1")
                town.nsqds["a:1"].refusal = ConnectionRefusedError()
            for _ in range(4):
                await settle()
                town.clock.advance(1)
            await settle()
            assert town.lookupds.count("l:1") > asked
            assert town.nsqds["a:1"].dial_count > 1
            town.lookupds.behaviours = {"l:1": lists()}
            await town.poll()
            dial_count = town.nsqds["a:1"].dial_count
            await town.poll()
            assert town.nsqds["a:1"].dial_count == dial_count
            assert consumer.stats().connections == ()

    async def test_filter_and_address_map_select_addresses(self):
        town = Town(
            "mapped:1",
            discovery_filter=lambda nodes: [node for node in nodes if node.broadcast_address != "b"],
            address_map={"a:1": "mapped:1"},
        )
        town.lookupds.behaviours = {"l:1": lists("a:1", "b:1")}
        async with town.consumer as consumer, await town.nsqds["mapped:1"].subscribe():
            await consumer.wait_connected()

    async def test_nsqlookupds_can_be_added_and_removed(self):
        town = Town("a:1", nsqd_tcp_addresses=["a:1"], lookupd_http_addresses=[])
        town.nsqds["b:1"] = ScriptedBroker()
        town.lookupds.behaviours = {"l:1": lists("b:1")}
        async with town.consumer as consumer, await town.nsqds["a:1"].subscribe():
            consumer.connect_to_lookupd("l:1")
            async with await town.nsqds["b:1"].subscribe():
                await consumer.wait_connected()
                consumer.disconnect_from_lookupd("l:1")
                await settle()
                assert len(consumer.stats().connections) == 2
            await settle()
            assert [stats.address for stats in consumer.stats().connections] == ["a:1"]
            with pytest.raises(OptionError, match=r"nsqlookupd .*l:1 is none of those that are asked"):
                consumer.disconnect_from_lookupd("l:1")
            consumer.stop()
            with pytest.raises(Closed):
                consumer.connect_to_lookupd("l:1")


async def test_unexpected_dial_error_ends_the_consumer_and_is_raised_once():
    bench = Bench(["one:1"], close_timeout=0)
    bench.broker.refusal = ZeroDivisionError()
    with pytest.raises(ExceptionGroup) as caught:
        async with bench.consumer:
            await anyio.sleep_forever()
    assert len(caught.value.exceptions) == 1
    assert isinstance(bench.broker, ScriptedBroker)
    assert bench.broker.dial_count == 1


class TestMaxConnections:
    async def test_at_most_max_connections_are_dialled(self, caplog):
        addresses = [f"n{number}:1" for number in range(10_000)]
        town = Town("a:1", *addresses, nsqd_tcp_addresses=["a:1"], lookupd_http_addresses=["l:1"], max_connections=20)
        for nsqd in town.nsqds.values():
            nsqd.hanging = True
        town.lookupds.behaviours = {"l:1": lists(*addresses)}

        async with town.consumer as consumer:
            await settle()
            assert town.dialled() == {"a:1", *addresses[:19]}
            assert consumer.stats().left_out == 10_000 - 19
            assert len(consumer.stats().connections) == 20
            await town.poll()
            assert len(town.dialled()) == 20
            consumer.disconnect_from_nsqd("n3:1")
            await settle()
            assert town.dialled() == {"a:1", *addresses[:20]}
        warnings = [record.getMessage() for record in caplog.records if "max_connections" in record.msg]
        assert warnings == [
            "[t/c] nsqlookupds list 10000 nsqds, and 9981 of them are not connected: max_connections is 20"
        ]

    async def test_delisted_connections_count_for_max_connections(self):
        town = Town("a:1", "b:1", "c:1", lookupd_http_addresses=["l:1"], max_connections=2)
        town.lookupds.behaviours = {"l:1": lists("a:1", "b:1")}
        async with town.consumer as consumer:
            async with await town.nsqds["a:1"].subscribe(), await town.nsqds["b:1"].subscribe() as b:
                await consumer.wait_connected()
                town.lookupds.behaviours = {"l:1": lists("a:1", "c:1")}
                await town.poll()
                assert list(consumer.unconnected) == ["c:1"]
                assert town.nsqds["c:1"].dial_count == 0
                await b.close()
                async with await town.nsqds["c:1"].subscribe():
                    await consumer.wait_connected()
