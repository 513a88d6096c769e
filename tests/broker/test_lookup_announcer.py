from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import attrs
import pytest
from anyio.abc import ByteStream, SocketAttribute

from nsqkit.broker import lookup_announcer
from nsqkit.broker.core.lookup_peer import PING_INTERVAL_NS
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.lookup_announcer import DIAL_TIMEOUT, LookupAnnouncer, lookup_channels
from nsqkit.clock import NS_PER_S, LoopClock, ManualClock
from nsqkit.wire.lookup import (
    LookupCommandDecoder,
    LookupdInfo,
    Node,
    decode_node,
    encode_answer,
    encode_info,
)
from tests.answering import answering, http_answer, unused_address
from tests.rules import AllowAll

pytestmark = pytest.mark.anyio

NODE = Node(broadcast_address="b", hostname="h", tcp_port=4150, http_port=4151, version="1.3.0")
WAIT_LIMIT = 60.0


class Log(logging.Handler):
    """The log of the broker; ``wait`` waits for texts in it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""
        self._news = anyio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"
        self._news.set()

    async def wait(self, *parts: str) -> None:
        """Wait until the log contains all parts."""
        with anyio.fail_after(WAIT_LIMIT):
            while not all(part in self.text for part in parts):
                self._news = anyio.Event()
                await self._news.wait()


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    logging.getLogger("nsqkit.broker").addHandler(handler)
    yield handler
    logging.getLogger("nsqkit.broker").removeHandler(handler)


class Lookupd:
    """An nsqlookupd that answers OK to every command, and records the commands.

    Attributes:
        address: where it listens.
        received: the commands of each connection; IDENTIFY without its body.
        info: its answer to IDENTIFY.
        silent: while True it does not answer.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.received: list[list[bytes]] = []
        self.info = LookupdInfo(broadcast_address="127.0.0.1", http_port=1)
        self.silent = False
        self.open_count = 0
        self._streams: list[ByteStream] = []
        self._news = anyio.Event()

    async def serve(self, stream: ByteStream) -> None:
        lines: list[bytes] = []
        self.received.append(lines)
        self._streams.append(stream)
        self.open_count += 1
        decoder = LookupCommandDecoder(AllowAll())
        try:
            async with stream:
                async for data in stream:
                    for command in decoder.feed(data):
                        answer = b"OK"
                        if command.verb == b"IDENTIFY":
                            assert decode_node(command.body) == NODE
                            answer = encode_info(self.info)
                        lines.append(b" ".join([command.verb, *command.params]))
                        self._tell()
                        if not self.silent:
                            await stream.send(encode_answer(answer))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.open_count -= 1
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def wait(self, *expected: list[bytes]) -> None:
        """Wait until exactly these commands were received on the connections."""
        with anyio.move_on_after(WAIT_LIMIT):
            while self.received != [*expected]:
                await self._news.wait()
        assert self.received == [*expected]

    async def wait_closed(self) -> None:
        with anyio.fail_after(WAIT_LIMIT):
            while self.open_count:
                await self._news.wait()

    async def close_all(self) -> None:
        for stream in self._streams:
            await stream.aclose()
        await self.wait_closed()


@asynccontextmanager
async def running_lookupd(address: str = "127.0.0.1:0") -> AsyncIterator[Lookupd]:
    host, _, port = address.rpartition(":")
    async with await anyio.create_tcp_listener(local_host=host, local_port=int(port)) as listener:
        lookupd = Lookupd(f"{host}:{listener.extra(SocketAttribute.local_port)}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, lookupd.serve)
            yield lookupd
            tasks.cancel_scope.cancel()


class Broker:
    """The broker of an announcer: options that may change, topics and channels."""

    def __init__(self, *addresses: str) -> None:
        self.options = BrokerOptions(lookupd_tcp_addresses=addresses)
        self.registrations: dict[bytes, list[bytes]] = {}
        self.clock = ManualClock()
        self.announcer = LookupAnnouncer(
            lambda: self.options, clock=self.clock, registrations=lambda: self.registrations, node=NODE
        )

    def configure(self, *addresses: str) -> None:
        self.options = attrs.evolve(self.options, lookupd_tcp_addresses=addresses)
        self.announcer.changed()

    def change(self, **topics: list[bytes]) -> None:
        self.registrations = {name.encode(): channels for name, channels in topics.items()}
        self.announcer.changed()

    async def wait_known(self, count: int) -> None:
        with anyio.fail_after(WAIT_LIMIT):
            while len(self.announcer.http_addresses) != count:
                await anyio.wait_all_tasks_blocked()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.announcer.run)
                yield
                scope.deadline = anyio.current_time() + WAIT_LIMIT  # it must have ended by then
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught


async def test_existing_and_changed_registrations_are_announced():
    async with running_lookupd() as lookupd:
        broker = Broker(lookupd.address)
        broker.change(t=[b"c"], u=[])
        async with broker.running():
            expected = [b"IDENTIFY", b"REGISTER t c", b"REGISTER u"]
            await lookupd.wait(expected)
            broker.change(t=[b"c", b"d"], v=[])
            expected += [b"UNREGISTER u", b"REGISTER t d", b"REGISTER v"]
            await lookupd.wait(expected)
        await lookupd.wait_closed()
    assert lookupd.received == [expected]


async def test_every_nsqlookupd_gets_announcements_once():
    async with running_lookupd() as one, running_lookupd() as other:
        broker = Broker(one.address, other.address, one.address)
        async with broker.running():
            for lookupd in (one, other):
                await lookupd.wait([b"IDENTIFY"])
            broker.change(t=[])
            for lookupd in (one, other):
                await lookupd.wait([b"IDENTIFY", b"REGISTER t"])


async def test_a_connection_is_pinged():
    async with running_lookupd() as lookupd:
        broker = Broker(lookupd.address)
        async with broker.running():
            await broker.wait_known(1)
            for count in (1, 2):
                broker.clock.advance(PING_INTERVAL_NS / NS_PER_S)
                await lookupd.wait([b"IDENTIFY", *[b"PING"] * count])


async def test_a_lost_nsqlookupd_is_dialled_after_the_interval(log):
    async with running_lookupd() as lookupd:
        broker = Broker(lookupd.address)
        async with broker.running():
            await broker.wait_known(1)
            await lookupd.close_all()
            await log.wait("has closed the connection")
            broker.clock.advance(PING_INTERVAL_NS / NS_PER_S - 0.001)
            await anyio.wait_all_tasks_blocked()
            assert lookupd.received == [[b"IDENTIFY"]]
            broker.clock.advance(0.001)
            await lookupd.wait([b"IDENTIFY"], [b"IDENTIFY"])


async def test_a_lost_nsqlookupd_is_dialled_at_once_for_a_change(log):
    async with running_lookupd() as lookupd:
        broker = Broker(lookupd.address)
        async with broker.running():
            await broker.wait_known(1)
            await lookupd.close_all()
            await log.wait("has closed the connection")
            broker.change(t=[b"c"])
            await lookupd.wait([b"IDENTIFY"], [b"IDENTIFY", b"REGISTER t c"])


async def test_an_nsqlookupd_that_does_not_answer_is_disconnected(log):
    async with running_lookupd() as lookupd:
        lookupd.silent = True
        broker = Broker(lookupd.address)
        async with broker.running():
            await lookupd.wait([b"IDENTIFY"])
            broker.clock.advance(1)
            await log.wait("no answer within 1 s")
            await lookupd.wait_closed()
            lookupd.silent = False
            broker.clock.advance(14)
            await lookupd.wait([b"IDENTIFY"], [b"IDENTIFY"])
            await broker.wait_known(1)


async def test_an_nsqlookupd_that_starts_later_is_connected(log):
    address = await unused_address()
    broker = Broker(address)
    async with broker.running():
        await log.wait(f"LOOKUPD({address}): ")
        async with running_lookupd(address) as lookupd:
            broker.clock.advance(15)
            await lookupd.wait([b"IDENTIFY"])


async def test_bad_addresses_do_not_affect_others(log):
    bad = ("nowhere", "a:b:c", "[::1", "127.0.0.1:99999", "\0:1", "a" * 64 + ":1", "")
    async with running_lookupd() as lookupd:
        broker = Broker(*bad, lookupd.address)
        async with broker.running():
            await lookupd.wait([b"IDENTIFY"])
            await log.wait(*(f"LOOKUPD({address}): " for address in bad))
    assert "internal error" not in log.text


async def test_dialling_has_a_timeout(monkeypatch, log):
    async def connect(host: str, port: int) -> None:
        assert (host, port) == ("localhost", 1)
        await anyio.sleep_forever()

    monkeypatch.setattr(lookup_announcer, "connect_tcp", connect)
    broker = Broker(":1")
    async with broker.running():
        await anyio.wait_all_tasks_blocked()
        broker.clock.advance(DIAL_TIMEOUT)
        await log.wait("LOOKUPD(:1): no connection within 1 seconds")


async def test_an_internal_error_does_not_end_the_announcer(monkeypatch, log):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    async with running_lookupd() as lookupd:
        broker = Broker(lookupd.address)
        with monkeypatch.context() as patches:
            patches.setattr(lookup_announcer, "LookupPeerSession", fail)
            async with broker.running():
                await log.wait("internal error")
                patches.undo()
                broker.clock.advance(15)
                await broker.wait_known(1)


async def test_addresses_may_change():
    async with running_lookupd() as one, running_lookupd() as other:
        broker = Broker(one.address)
        broker.registrations = {b"t": []}
        async with broker.running():
            await one.wait([b"IDENTIFY", b"REGISTER t"])
            broker.configure(other.address)
            await one.wait_closed()
            await other.wait([b"IDENTIFY", b"REGISTER t"])
            broker.configure()
            await other.wait_closed()
            assert broker.announcer.http_addresses == []
            broker.configure(one.address, other.address)
            for lookupd in (one, other):
                await lookupd.wait(*[[b"IDENTIFY", b"REGISTER t"]] * 2)


async def test_an_undone_change_is_not_announced():
    async with running_lookupd() as lookupd:
        broker = Broker(lookupd.address)
        async with broker.running():
            await broker.wait_known(1)
            for _ in range(100):
                broker.announcer.changed()
            await anyio.wait_all_tasks_blocked()
    assert lookupd.received == [[b"IDENTIFY"]]


async def test_without_addresses_no_connection_is_made():
    broker = Broker()
    async with broker.running():
        broker.change(t=[])
        await anyio.wait_all_tasks_blocked()
        assert await broker.announcer.channels_to_create(b"t") == []


# ---- requests over HTTP ---------------------------------------------------------------------------------------


def channels(*names: str) -> bytes:
    return http_answer(json.dumps({"channels": names}).encode())


async def ask(*addresses: str, topic: bytes = b"t", timeout_ns: int = 60 * NS_PER_S) -> set[bytes]:
    options = BrokerOptions(http_client_connect_timeout_ns=60 * NS_PER_S, http_client_request_timeout_ns=timeout_ns)
    return await lookup_channels(addresses, topic, options, LoopClock())


async def test_answers_of_all_nsqlookupds_are_merged():
    async with (
        answering(lambda _: channels("a", "b")) as one,
        answering(lambda _: channels("b", "c")) as other,
    ):
        assert await ask(one.address, other.address, topic=b"t#ephemeral") == {b"a", b"b", b"c"}
    assert one.requests[0].startswith(b"GET /channels?topic=t%23ephemeral HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http_answer(b"no", status="500 X"), "got response 500 no"),
        (http_answer(b"no"), "the answer cannot be understood: Expecting value"),
        (http_answer(b'{"channels":{}}'), "the answer cannot be understood: channels is ()"),
        (b"", "the server has closed the connection"),
        (None, "no answer within 1 seconds"),
    ],
)
async def test_an_nsqlookupd_without_a_usable_answer_is_skipped(answer, error, caplog):
    async with answering(lambda _: answer) as bad, answering(lambda _: channels("a")) as good:
        timeout_ns = 60 * NS_PER_S if answer is not None else NS_PER_S
        assert await ask(bad.address, good.address, timeout_ns=timeout_ns) == {b"a"}
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    head = f"failed to query nsqlookupd {bad.address} for channels of topic t - "
    assert record.getMessage().startswith(head)
    assert error in record.getMessage()


@pytest.mark.parametrize("answer", [http_answer(b'{"channels":null}'), http_answer(b"{}"), channels()])
async def test_an_answer_without_channels_is_accepted(answer, caplog):
    async with answering(lambda _: answer) as server:
        assert await ask(server.address) == set()
    assert not caplog.records


async def test_invalid_names_are_skipped():
    answer = http_answer(json.dumps({"channels": ["a", "../b", "", 5, None, "\ud800"]}).encode())
    async with answering(lambda _: answer) as server:
        assert await ask(server.address) == {b"a"}


async def test_a_new_topic_gets_the_channels_of_the_nsqlookupds(log):
    async with (
        answering(lambda _: channels("c", "b", "e#ephemeral")) as one,
        answering(lambda _: channels("a")) as other,
        running_lookupd() as first,
        running_lookupd() as second,
        running_lookupd() as nameless,
    ):
        first.info = LookupdInfo(broadcast_address="127.0.0.1", http_port=one.port)
        second.info = LookupdInfo(broadcast_address="127.0.0.1", http_port=other.port)
        nameless.info = LookupdInfo(http_port=1)
        broker = Broker(first.address, second.address, nameless.address)
        async with broker.running():
            await broker.wait_known(2)
            assert broker.announcer.http_addresses == [one.address, other.address]
            assert await broker.announcer.channels_to_create(b"t") == [b"a", b"b", b"c"]
            # An nsqlookupd whose connection is lost may still answer over HTTP.
            await first.close_all()
            await log.wait("has closed the connection")
            assert await broker.announcer.channels_to_create(b"t") == [b"a", b"b", b"c"]
