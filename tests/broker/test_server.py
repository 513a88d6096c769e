from __future__ import annotations

import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.broker.core.topics.subscription import Subscription
from nsqkit.broker.server import STOP_TIMEOUT, Nsqd
from nsqkit.clock import ManualClock
from nsqkit.errors import Closed, OptionError
from nsqkit.transport.address import split_address
from nsqkit.transport.tcp import connect
from nsqkit.wire.commands import (
    MAGIC_V2,
    encode_deferred_publish,
    encode_identify,
    encode_publish,
    encode_ready,
    encode_subscribe,
)
from nsqkit.wire.frames import FrameDecoder, MessageFrame, Response
from tests.peers import settle

pytestmark = pytest.mark.anyio

IN_MEMORY = pytest.mark.parametrize("way", ["tcp", "memory"])


def options(**values: Any) -> BrokerOptions:
    return BrokerOptions(**{"tcp_address": "127.0.0.1:0", "http_address": "", **values})


class Client:
    """A client that sends bytes and reads frames."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._decoder = FrameDecoder()
        self._frames: list[Any] = []

    async def send(self, *commands: bytes) -> None:
        await self.stream.send(b"".join(commands))

    async def frame(self) -> Any:
        """Return the next frame: the payload of a response, an error, or a message."""
        with anyio.fail_after(60):
            while not self._frames:
                self._frames += self._decoder.feed(await self.stream.receive())
        frame = self._frames.pop(0)
        return frame.payload if isinstance(frame, Response) else frame

    async def send_command(self, command: bytes) -> None:
        """Send a command that is answered with OK."""
        await self.send(command)
        assert await self.frame() == b"OK"

    async def is_closed(self) -> bool:
        """Wait until the broker has closed the connection; return False if it has sent more."""
        assert self._frames == []
        with anyio.fail_after(60):
            try:
                return not await self.stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return True


@asynccontextmanager
async def connected(nsqd: Nsqd, way: str = "tcp") -> AsyncIterator[Client]:
    async with await connect(nsqd.tcp_address) if way == "tcp" else nsqd.connect() as stream:
        client = Client(stream)
        await client.send(MAGIC_V2)
        yield client


async def subscribed(client: Client, rdy_count: int = 1) -> None:
    await client.send_command(encode_subscribe(b"t", b"c"))
    await client.send(encode_ready(rdy_count))


def refused(address: str) -> bool:
    """Return True if a connection to an address is refused."""
    try:
        socket.create_connection(split_address(address), timeout=1).close()
    except OSError:
        return True
    return False


class TestStarting:
    async def test_server_answers_inside_the_block(self):
        async with Nsqd(options()) as nsqd, connected(nsqd) as client:
            assert nsqd.tcp_address.startswith("127.0.0.1:")
            assert nsqd.http_address == ""
            await client.send_command(encode_publish(b"t", b"x"))

    async def test_server_serves_http(self):
        async with Nsqd(options(http_address="127.0.0.1:0")) as nsqd:
            async with await connect(nsqd.http_address) as stream:
                await stream.send(b"GET /ping HTTP/1.0\r\n\r\n")
                answer = b""
                with anyio.fail_after(60), pytest.raises(anyio.EndOfStream):
                    while True:
                        answer += await stream.receive()
            assert answer.startswith(b"HTTP/1.")
            assert answer.endswith(b"\r\n\r\nOK")

    async def test_the_start_time_follows_the_clock(self):
        clock = ManualClock(123)
        async with Nsqd(options(), clock=clock) as nsqd:
            assert nsqd.clock is clock
            assert nsqd.start_time_ns == 123

    async def test_defaults_are_nsqds_options_and_the_real_time(self):
        nsqd = Nsqd()
        assert nsqd.options == BrokerOptions()
        assert nsqd.clock.now_ns() > 1_700_000_000 * 10**9

    @pytest.mark.parametrize("name", ["tcp_address", "http_address"])
    async def test_an_address_in_use_is_named_and_everything_is_closed(self, name):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            nsqd = Nsqd(options(**{name: address}))
            with pytest.raises(OSError, match=f"listen \\({address}\\) failed - "):
                await nsqd.__aenter__()
        if name == "http_address":
            assert refused(nsqd.tcp_address)
        with pytest.raises(Closed):
            nsqd.connect()

    @pytest.mark.parametrize("name", ["tcp_address", "http_address"])
    async def test_an_invalid_address_is_refused(self, name):
        with pytest.raises(OptionError, match="address 'here:there' is not host:port"):
            await Nsqd(options(**{name: "here:there"})).__aenter__()

    async def test_on_all_interfaces_a_client_has_its_ipv4_address(self):
        async with Nsqd(options(tcp_address="0.0.0.0:0")) as nsqd:
            port = split_address(nsqd.tcp_address)[1]
            async with await connect(f"127.0.0.1:{port}") as stream:
                await stream.send(MAGIC_V2)
                with anyio.fail_after(60):
                    while not nsqd.broker.sessions:
                        await anyio.lowlevel.checkpoint()
                (session,) = nsqd.broker.sessions
                local_port = stream.extra(SocketAttribute.local_address)[1]
                assert session.remote_address == f"127.0.0.1:{local_port}"
                assert session.identity.client_id == "127.0.0.1"


class TestStopping:
    @IN_MEMORY
    async def test_a_stop_closes_every_connection(self, way):
        async with Nsqd(options()) as nsqd:
            context = connected(nsqd, way)
            client = await context.__aenter__()
            await client.send_command(encode_publish(b"t", b"x"))
        assert await client.is_closed()
        await context.__aexit__(None, None, None)
        assert refused(nsqd.tcp_address)
        assert not nsqd.broker.sessions

    async def test_a_stop_sends_the_remaining_output(self):
        async with Nsqd(options()) as nsqd:
            client = Client(nsqd.connect())
            await client.send(MAGIC_V2, encode_subscribe(b"t", b"c"), encode_ready(9))
            await client.send(*(encode_publish(b"t", bytes(1000)) for _ in range(3)))
            await settle()
        frames = [await client.frame() for _ in range(7)]
        assert [len(frame.body) for frame in frames if isinstance(frame, MessageFrame)] == [1000] * 3
        assert await client.is_closed()
        await client.stream.aclose()

    async def test_a_stop_waits_for_a_client_that_does_not_read_for_the_timeout(self):
        clock = ManualClock()
        start_ns = clock.now_ns()

        async def advance() -> None:
            await anyio.wait_all_tasks_blocked()
            clock.advance(STOP_TIMEOUT)

        async with anyio.create_task_group() as tasks:
            async with Nsqd(options(), clock=clock) as nsqd:
                context = connected(nsqd)
                client = await context.__aenter__()
                await client.send(encode_subscribe(b"t", b"c"), encode_ready(2500))
                async with connected(nsqd) as other:
                    for _ in range(30):
                        await other.send_command(encode_publish(b"t", bytes(1 << 20)))
                tasks.start_soon(advance)
            assert clock.now_ns() > start_ns
        await context.__aexit__(None, None, None)

    async def test_a_stop_refuses_connections_and_messages_while_it_sends_the_rest(self):
        clock = ManualClock()
        are_refused: list[bool] = []
        answers: list[bytes] = []

        async def publish() -> None:
            await anyio.wait_all_tasks_blocked()
            are_refused.extend(map(refused, [nsqd.tcp_address, nsqd.http_address]))
            await http.send(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
            answers.append(await http.receive())
            with pytest.raises(Closed):
                nsqd.connect()
            clock.advance(STOP_TIMEOUT)

        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            async with Nsqd(options(http_address="127.0.0.1:0"), clock=clock) as nsqd:
                client = await stack.enter_async_context(connected(nsqd))
                await client.send(encode_subscribe(b"t", b"c"), encode_ready(2500))
                async with connected(nsqd) as other:
                    for _ in range(30):
                        await other.send_command(encode_publish(b"t", bytes(1 << 20)))
                http = await stack.enter_async_context(await connect(nsqd.http_address))
                await http.send(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200" in await http.receive()
                tasks.start_soon(publish)
        assert are_refused == [True, True]
        assert answers[0].startswith(b"HTTP/1.1 503")
        assert b"EXITING" in answers[0]

    async def test_a_stop_without_clients(self):
        async with Nsqd(options()):
            pass

    async def test_a_connection_that_was_just_accepted_is_closed_too(self):
        async with Nsqd(options()) as nsqd:
            client = Client(nsqd.connect())
        assert await client.is_closed()
        await client.stream.aclose()

    async def test_an_exception_in_the_block_is_raised_unchanged(self):
        with pytest.raises(KeyError, match="mine"):
            async with Nsqd(options()) as nsqd, connected(nsqd):
                raise KeyError("mine")
        assert refused(nsqd.tcp_address)

    async def test_server_can_be_cancelled(self):
        with anyio.CancelScope() as scope:
            async with Nsqd(options()) as nsqd, connected(nsqd):
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert refused(nsqd.tcp_address)

    async def test_a_restart_keeps_messages_in_memory(self):
        nsqd = Nsqd(options())
        for n in range(2):
            async with nsqd, connected(nsqd) as client:
                await client.send_command(encode_publish(b"t", b"%d" % n))
        assert len(nsqd.broker.topics[b"t"].queue) == 2

    async def test_connect_outside_of_the_block_is_refused(self):
        nsqd = Nsqd(options())
        with pytest.raises(Closed, match="the broker is not running"):
            nsqd.connect()


class TestTime:
    """With a ManualClock, and connections in memory, so that ``settle`` returns when all is done."""

    async def test_an_unanswered_message_is_delivered_again(self):
        clock = ManualClock()
        flags = options(msg_timeout_ns=20 * 10**9)
        async with Nsqd(flags, clock=clock) as nsqd, connected(nsqd, "memory") as client:
            await subscribed(client)
            await client.send_command(encode_publish(b"t", b"x"))
            assert (await client.frame()).attempts == 1
            await settle()
            clock.advance(19.999)
            await settle()
            assert nsqd.broker.topics[b"t"].channels[b"c"].timeout_count == 0
            clock.advance(0.001)
            assert (await client.frame()).attempts == 2

    async def test_a_deferred_message_is_delivered_when_it_is_due(self):
        clock = ManualClock()
        async with Nsqd(options(), clock=clock) as nsqd, connected(nsqd, "memory") as client:
            await subscribed(client)
            await client.send_command(encode_deferred_publish(b"t", b"later", 5000))
            await settle()
            clock.advance(4.999)
            await settle()
            await client.send_command(encode_publish(b"other", b"x"))  # no message was delivered before this answer
            clock.advance(0.001)
            assert (await client.frame()).body == b"later"

    async def test_heartbeats_are_sent_and_a_silent_client_is_disconnected(self):
        clock = ManualClock()
        async with Nsqd(options(), clock=clock) as nsqd, connected(nsqd, "memory") as client:
            await client.send_command(encode_identify(b'{"heartbeat_interval": 1000}'))
            for _ in range(3):
                await settle()
                clock.advance(1)
                assert await client.frame() == b"_heartbeat_"
                await client.send(b"NOP\n")
            await settle()
            clock.advance(1)
            assert await client.frame() == b"_heartbeat_"
            await settle()
            clock.advance(1)
            assert await client.is_closed()
            await settle()
            assert not nsqd.broker.sessions

    async def test_process_changes_delivers_messages(self):
        async with Nsqd(options(), clock=ManualClock()) as nsqd, connected(nsqd, "memory") as client:
            await subscribed(client)
            await settle()
            nsqd.broker.topics[b"t"].put([b"from outside"], nsqd.clock.now_ns())
            nsqd.process_changes()
            assert (await client.frame()).body == b"from outside"

    async def test_the_same_seed_gives_the_same_sample(self):
        samples = []
        for _ in range(2):
            async with Nsqd(options(), random=Random(5), clock=ManualClock()) as nsqd:
                async with connected(nsqd, "memory") as client:
                    await client.send_command(encode_identify(b'{"sample_rate": 50}'))
                    await subscribed(client, 100)
                    for n in range(30):
                        await client.send(encode_publish(b"t", b"%d" % n))
                    frames = [await client.frame() for _ in range(30)]
                    await settle()
                    samples.append([frame.body for frame in frames if isinstance(frame, MessageFrame)])
        assert samples[0] == samples[1]
        assert samples[0]


class TestBackpressure:
    @IN_MEMORY
    async def test_a_silent_consumer_gets_messages_up_to_its_rdy_count(self, way):
        # More than an outbox holds, in large messages, so that the rest is sent only after a write.
        body, count = b"x" * 400_000, 20
        async with Nsqd(options()) as nsqd, connected(nsqd, way) as client:
            await client.send_command(encode_subscribe(b"t", b"c"))
            async with connected(nsqd, way) as publisher:
                for _ in range(count):
                    await publisher.send_command(encode_publish(b"t", body))
            await client.send(encode_ready(count))
            bodies = [(await client.frame()).body for _ in range(count)]
            assert bodies == [body] * count


class TestBadClients:
    @IN_MEMORY
    async def test_a_bad_client_does_not_affect_others(self, way):
        async with Nsqd(options()) as nsqd, connected(nsqd, way) as good, connected(nsqd, way) as bad:
            await bad.send(b"\xff" * 30 + b"\n")
            assert str(await bad.frame()).startswith("E_INVALID invalid command")
            assert await bad.is_closed()
            await good.send_command(encode_publish(b"t", b"x"))

    async def test_the_reason_for_a_disconnect_is_logged(self, caplog):
        caplog.set_level(logging.INFO, "nsqkit.broker")
        async with Nsqd(options()) as nsqd:
            async with connected(nsqd, "memory") as bad:
                await bad.send(b"NONSENSE\xff\n")
                await bad.frame()
                assert await bad.is_closed()
                await settle()
            good = nsqd.connect("memory:1")
            await settle()
        await good.aclose()  # the broker has ended its connection, which is no error
        lines = [record.getMessage() for record in caplog.records if record.name == "nsqkit.broker"]
        assert lines == [
            f"TCP: listening on {nsqd.tcp_address}",
            "TCP: new client(memory:0)",
            "[memory:0] - E_INVALID invalid command NONSENSE\\udcff",
            "PROTOCOL(V2): [memory:0] exiting",
            "TCP: new client(memory:1)",
            "PROTOCOL(V2): [memory:1] exiting",
            "stopped",
        ]

    async def test_clients_that_connect_during_the_stop(self):
        for _ in range(3):
            async with Nsqd(options()) as nsqd:
                async with connected(nsqd) as client:
                    await client.send_command(encode_publish(b"t", b"x"))
                late = [socket.create_connection(split_address(nsqd.tcp_address)) for _ in range(5)]
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()
            for each in late:
                each.close()


@pytest.mark.parametrize(
    "anyio_backend", ["asyncio", "trio", pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")]
)
async def test_clients_that_disconnect_before_they_are_accepted(anyio_backend):
    if isinstance(anyio_backend, tuple):
        pytest.importorskip("uvloop")
    async with Nsqd(options(http_address="127.0.0.1:0")) as nsqd:
        for address in (nsqd.tcp_address, nsqd.http_address):
            for sent in (b"", b"  V2", b"GET /ping HT"):
                with socket.create_connection(split_address(address)) as gone:
                    gone.sendall(sent)
                    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with connected(nsqd) as client:
            await client.send_command(encode_publish(b"t", b"x"))


@pytest.mark.parametrize("busy_poll_ns", [0, 70_000])
async def test_busy_polling_follows_the_option(monkeypatch, anyio_backend_name, busy_poll_ns):
    made: list[int] = []
    recorded: list[int] = []

    class Spy:
        def __init__(self, loop: Any, clock: Any, duration_ns: int) -> None:
            made.append(duration_ns)

        def record(self, received_ns: int) -> None:
            recorded.append(received_ns)

    monkeypatch.setattr("nsqkit.broker.server.BusyPoll", Spy)
    clock = ManualClock()
    given = options(busy_poll_ns=busy_poll_ns)
    async with Nsqd(given, clock=clock) as nsqd, connected(nsqd) as client:
        await client.send_command(encode_publish(b"t", b"x"))
    polls = busy_poll_ns > 0 and anyio_backend_name == "asyncio"
    assert made == ([70_000] if polls else [])
    assert (clock.now_ns() in recorded) == polls


async def test_an_internal_error_with_one_client_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Nsqd(options()) as nsqd, nsqd.connect("good:1") as good, nsqd.connect("bad:2") as bad:
        await Client(good).send_command(MAGIC_V2 + encode_publish(b"t", b"x"))
        await settle()
        works = Session.receive_data

        def fails(session: Session, data: bytes, now_ns: int) -> None:
            if session.remote_address == "bad:2":
                raise KeyError("a fault")
            works(session, data, now_ns)

        monkeypatch.setattr(Session, "receive_data", fails)
        await bad.send(MAGIC_V2)
        assert await Client(bad).is_closed()
        await Client(good).send_command(encode_publish(b"t", b"y"))
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["[bad:2] - internal error"]


@pytest.mark.parametrize("verb", ["process_input", "receive_eof", "data_to_send", "handle_deadline", "discard"])
async def test_an_internal_error_in_any_method_ends_one_connection(
    verb: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with (
        Nsqd(options(), clock=clock) as nsqd,
        nsqd.connect("good:1") as good,
        nsqd.connect("bad:2") as bad,
    ):
        for stream in (good, bad):
            await Client(stream).send_command(MAGIC_V2 + encode_publish(b"t", b"x"))
        await settle()
        works: Any = getattr(Session, verb)
        getter: Any = getattr(works, "fget", works)

        def fails(session: Session, *args: Any) -> Any:
            if session.remote_address == "bad:2":
                raise KeyError("a fault")
            return getter(session, *args)

        monkeypatch.setattr(Session, verb, property(fails) if isinstance(works, property) else fails)
        if verb == "handle_deadline":
            clock.advance(30)
        elif verb in ("receive_eof", "discard"):
            await bad.send_eof()
        else:
            await bad.send(b"NOP\n" * 5000 + encode_publish(b"t", b"x"))
        assert await Client(bad).is_closed()
        await good.send(encode_publish(b"t", b"y"))
        assert await Client(good).frame() in (b"OK", b"_heartbeat_")
        await settle()
        monkeypatch.undo()
    assert [record.getMessage() for record in caplog.records if record.exc_info]


async def test_an_internal_error_in_a_delivery_does_not_affect_the_publisher(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with (
        Nsqd(options(), clock=clock) as nsqd,
        nsqd.connect("good:1") as good,
        nsqd.connect("bad:2") as bad,
    ):
        await Client(bad).send_command(MAGIC_V2 + encode_subscribe(b"t", b"c"))
        await bad.send(encode_ready(1))
        await settle()

        def fails(*_: Any) -> None:
            raise KeyError("a fault")

        monkeypatch.setattr(Subscription, "deliver", fails)
        await Client(good).send_command(MAGIC_V2 + encode_publish(b"t", b"x"))
        await Client(good).send_command(encode_publish(b"t", b"y"))
    assert {record.getMessage() for record in caplog.records if record.exc_info} == {"internal error"}
