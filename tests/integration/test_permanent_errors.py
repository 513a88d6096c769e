"""Permanent errors: they are logged once with advice, are visible, and end a client with end_on_permanent_error.

The brokers here are nsqkit's own in threads of their own, and raw servers of other protocols, all on real sockets.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from nsqkit import BlockingConsumer, BlockingProducer, Consumer, Message, Producer
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.clock import ManualClock
from nsqkit.errors import (
    AuthFailed,
    BadBody,
    ConnectionLost,
    NegotiationFailed,
    NotConnected,
    NSQError,
    ProtocolError,
    RequestRefused,
    WrongServer,
)
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from nsqkit.transport.tcp import listen
from tests.answering import answering, http_answer, unused_address
from tests.certificates import HOST, write_files
from tests.integration.stage import until
from tests.producer.stage import advancing

pytestmark = pytest.mark.anyio

WAIT_LIMIT = 60
DIALLING: dict[str, Any] = {"dial_timeout": 10.0, "reconnect_delay_max": 0.01, "reconnect_delay_min": 0.01}
ENDING: dict[str, Any] = {"end_on_permanent_error": True, **DIALLING}


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[str]:
    """Run a server that answers any input with the same bytes, and closes."""

    async def serve(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(answer)

    async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve, tasks)
        yield listener.address
        tasks.cancel_scope.cancel()


async def why_not(address: str, **options: Any) -> Exception:
    """Return the error with which a consumer fails to connect."""
    with anyio.fail_after(WAIT_LIMIT):
        async with Consumer("t", "c", nsqd_tcp_addresses=[address], **DIALLING, **options) as consumer:
            await until(lambda: consumer.unconnected.get(address))
            error = consumer.unconnected[address]
            assert error is not None
            return error


async def handle(message: Message) -> None:
    raise AssertionError(message)


# ---- wrong addresses ---------------------------------------------------------------------------------------------


async def test_the_http_port_of_nsqd_is_named(nsqd: NsqdServer):
    error = await why_not(nsqd.http_address)
    assert isinstance(error, ProtocolError)
    assert str(error) == (
        "the peer is no nsqd: it speaks HTTP, as port 4151 of nsqd and 4161 of nsqlookupd do; "
        "give the TCP port of nsqd, by default 4150"
    )


async def test_the_http_port_of_nsqlookupd_is_named(nsqlookupd: NsqlookupdServer):
    assert "it speaks HTTP" in str(await why_not(nsqlookupd.http_address))


async def test_the_tcp_port_of_nsqlookupd_is_named(nsqlookupd: NsqlookupdServer):
    assert "it is an nsqlookupd, on its TCP port" in str(await why_not(nsqlookupd.tcp_address))


async def test_port_that_requires_tls_at_once_is_named():
    async with raw_server(b"\x15\x03\x01\x00\x02\x02\x46") as address:
        assert "it speaks TLS from the first byte" in str(await why_not(address))


async def test_port_that_closes_at_once_may_require_tls(tmp_path: Path):
    nsqd = Nsqd(BrokerOptions(tcp_address="127.0.0.1:0", https_address="127.0.0.1:0", **tls_flags(tmp_path)))
    async with nsqd:
        error = await why_not(nsqd.https_address)
        assert isinstance(error, ConnectionLost)
        assert str(error) == (
            "the broker closed the connection without an answer to IDENTIFY; "
            "perhaps it is no nsqd, or wants TLS from the first byte"
        )


async def test_beginning_of_another_servers_answer_is_shown():
    async with raw_server(b"220 mail.example.org ESMTP\r\n") as address:
        error = await why_not(address)
        assert isinstance(error, ProtocolError)
        assert "begins with b'220 mail.example.org ESM'" in str(error)


async def test_tls_where_the_broker_has_none(nsqd: NsqdServer):
    error = await why_not(nsqd.tcp_address, tls_v1=True)
    assert str(error) == "tls_v1 is set, and the broker does not offer TLS"


def tls_flags(path: Path) -> dict[str, Any]:
    files = write_files(path)
    return {"tls_cert": files.certificate, "tls_key": files.key}


async def test_no_tls_where_the_broker_requires_it(tmp_path: Path):
    with NsqdServer(https_address="", tls_required="true", **tls_flags(tmp_path)) as nsqd:
        assert "TLS required" in str(await why_not(nsqd.tcp_address))


async def test_tcp_port_of_nsqlookupd_is_refused_for_http(nsqlookupd: NsqlookupdServer, caplog):
    caplog.set_level(logging.WARNING, "nsqkit")
    address, url = nsqlookupd.tcp_address, f"http://{nsqlookupd.tcp_address}"
    with anyio.fail_after(WAIT_LIMIT):
        async with Consumer("t", "c", lookupd_http_addresses=[address], lookupd_poll_interval=0.01) as consumer:
            await until(lambda: url in consumer.unconnected)
            error = consumer.unconnected[url]
            assert isinstance(error, WrongServer)
            assert str(error) == (
                f"{url}/lookup: the server speaks NSQ's TCP protocol; give its HTTP port, "
                "by default 4161 for nsqlookupd and 4151 for nsqd"
            )
            await until(lambda: consumer._discovery.lookupds[0].failure_count > 2)
    (record,) = (record for record in caplog.records if record.name == "nsqkit.lookup")
    assert record.levelname == "ERROR"
    assert "check the address of nsqlookupd" in record.getMessage()


async def test_refusing_nsqlookupd_is_in_unconnected_until_it_answers():
    answers = iter([http_answer(b"", status="403 Forbidden")])
    good = http_answer(b'{"channels": [], "producers": []}')
    async with answering(lambda _: next(answers, good)) as server:
        address, url = server.address, f"http://{server.address}"
        with anyio.fail_after(WAIT_LIMIT):
            async with Consumer("t", "c", lookupd_http_addresses=[address], lookupd_poll_interval=0.1) as consumer:
                await until(lambda: url in consumer.unconnected)
                assert isinstance(consumer.unconnected[url], RequestRefused)
                await until(lambda: consumer.unconnected == {})


# ---- the log -----------------------------------------------------------------------------------------------------


async def test_a_permanent_error_is_logged_once_with_what_to_do(nsqd: NsqdServer, caplog):
    caplog.set_level(logging.WARNING, "nsqkit")
    dialled: list[Exception | None] = []

    def on_connection(address: str, error: Exception | None) -> None:
        dialled.append(error)

    with anyio.fail_after(WAIT_LIMIT):
        async with Consumer(
            "t",
            "c",
            nsqd_tcp_addresses=[nsqd.tcp_address],
            msg_timeout=3600,
            on_connection=on_connection,
            **DIALLING,
        ) as consumer:
            await until(lambda: len(dialled) >= 3)
            assert isinstance(consumer.unconnected[nsqd.tcp_address], BadBody)
    (record,) = (record for record in caplog.records if record.name == "nsqkit.client")
    assert record.levelname == "ERROR"
    assert record.getMessage() == (
        f"[t/c] [{nsqd.tcp_address}] E_BAD_BODY IDENTIFY msg timeout (3600000) is invalid "
        "(change the option that the broker names, or the broker's limit)"
    )


# ---- clients that end --------------------------------------------------------------------------------------------


@pytest.fixture
def refusal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """An address, and options with which no client can connect."""
    with ExitStack() as stack:
        match request.param:
            case "timeout":
                yield stack.enter_context(NsqdServer()).tcp_address, {}
            case "secret":
                nsqd = NsqdServer(auth_http_address="127.0.0.1:1")
                yield stack.enter_context(nsqd).tcp_address, {"auth_secret": "wrong"}
            case "no secret":
                nsqd = NsqdServer(auth_http_address="127.0.0.1:1")
                yield stack.enter_context(nsqd).tcp_address, {}
            case "no tls":
                yield stack.enter_context(NsqdServer()).tcp_address, {"tls_v1": True}
            case "certificate":
                nsqd = NsqdServer(https_address="", **tls_flags(tmp_path))
                yield stack.enter_context(nsqd).tcp_address, {"tls_v1": True, "tls_server_name": HOST}
            case "http":
                yield stack.enter_context(NsqdServer()).http_address, {}


KINDS: dict[str, type[NSQError]] = {
    "timeout": BadBody,
    "secret": AuthFailed,
    "no secret": NegotiationFailed,
    "no tls": NegotiationFailed,
    "certificate": NegotiationFailed,
    "http": ProtocolError,
}
OF_PRODUCERS = {name: kind for name, kind in KINDS.items() if name != "timeout"}


async def run(consumer: Consumer) -> None:
    await consumer.run(handle)


async def run_in_parallel(consumer: Consumer) -> None:
    await consumer.run(handle, concurrency=3, auto_touch=True)


async def run_in_threads(consumer: Consumer) -> None:
    await consumer.run(print, in_threads=True)


async def run_batches(consumer: Consumer) -> None:
    await consumer.run_batches(print, concurrency=2)


async def iterate(consumer: Consumer) -> None:
    async for _ in consumer:
        pass


async def take_batches(consumer: Consumer) -> None:
    async for _ in consumer.batches(max_messages=10, max_wait=1):
        pass


async def wait_connected(consumer: Consumer) -> None:
    await consumer.wait_connected()


@pytest.mark.parametrize(("refusal", "kind"), KINDS.items(), indirect=["refusal"])
async def test_a_consumer_ends_with_the_permanent_error(refusal, kind: type[NSQError]):
    address, options = refusal
    options = {"msg_timeout": 3600 if kind is BadBody else 0, **options, **ENDING}
    with anyio.fail_after(WAIT_LIMIT):
        async with Consumer("t", "c", nsqd_tcp_addresses=[address], **options) as consumer:
            with pytest.raises(kind) as caught:
                await consumer.run(handle)
            assert consumer.unconnected == {address: caught.value}


@pytest.mark.parametrize(
    "receive",
    [run, run_in_parallel, run_in_threads, run_batches, iterate, take_batches, wait_connected],
    ids=lambda receive: receive.__name__,
)
async def test_every_way_to_receive_ends(receive, nsqd: NsqdServer):
    with anyio.fail_after(WAIT_LIMIT):
        async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], tls_v1=True, **ENDING) as consumer:
            with pytest.raises(NegotiationFailed):
                await receive(consumer)


async def test_begun_messages_are_still_answered(nsqd: NsqdServer):
    begun, refused = anyio.Event(), anyio.Event()

    async def wait_and_return(message: Message) -> None:
        begun.set()
        await refused.wait()

    with NsqlookupdServer() as lookupd, anyio.fail_after(WAIT_LIMIT):
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish("t", b"x")
        async with (
            Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], **ENDING) as consumer,
            anyio.create_task_group() as tasks,
        ):

            async def refuse() -> None:
                await begun.wait()
                consumer.connect_to_nsqd(lookupd.http_address)
                await until(lambda: consumer.unconnected.get(lookupd.http_address))
                refused.set()

            tasks.start_soon(refuse)
            with pytest.raises(ProtocolError):
                await consumer.run(wait_and_return)
            await until(lambda: consumer.stats().finished == 1)


async def test_an_nsqlookupd_ends_a_consumer_as_well(nsqlookupd: NsqlookupdServer):
    with anyio.fail_after(WAIT_LIMIT):
        async with Consumer("t", "c", lookupd_http_addresses=[nsqlookupd.tcp_address], **ENDING) as consumer:
            with pytest.raises(WrongServer):
                await consumer.run(handle)


async def test_unreachable_nsqd_is_dialled_without_end():
    dialled: list[Exception | None] = []
    address = await unused_address()
    with anyio.fail_after(WAIT_LIMIT):
        async with Consumer(
            "t",
            "c",
            nsqd_tcp_addresses=[address],
            on_connection=lambda address, error: dialled.append(error),
            **ENDING,
        ):
            await until(lambda: len(dialled) >= 3)
    assert {type(error) for error in dialled} == {NotConnected}


@pytest.mark.parametrize(("refusal", "kind"), OF_PRODUCERS.items(), indirect=["refusal"])
async def test_a_publish_raises_the_permanent_error(refusal, kind: type[NSQError]):
    address, options = refusal
    with anyio.fail_after(WAIT_LIMIT):
        async with Producer(address, connect_timeout=3600, **options, **ENDING) as producer:
            for _ in range(2):
                with pytest.raises(kind):
                    await producer.publish("t", b"x")
            with pytest.raises(kind):
                await producer.ping()


async def test_producer_continues_with_accepting_nsqds(nsqd: NsqdServer):
    with anyio.fail_after(WAIT_LIMIT):
        async with Producer(nsqd.tcp_address, nsqd.http_address, connect_timeout=3600, **ENDING) as producer:
            await until(lambda: producer.is_connected)
            await until(lambda: producer.stats().nsqds[1].error)
            for _ in range(3):
                await producer.publish("t", b"x")


@pytest.mark.parametrize(("refusal", "kind"), OF_PRODUCERS.items(), indirect=["refusal"])
async def test_publish_timeout_names_the_cause_without_the_option(refusal, kind: type[NSQError]):
    address, options = refusal
    clock = ManualClock()
    async with Producer(address, connect_timeout=0.3, clock=clock, **options, **DIALLING) as producer:
        await until(lambda: producer.stats().nsqds[0].error)
        async with advancing(clock, 0.3):
            with pytest.raises(NotConnected) as caught:
                await producer.publish("t", b"x")
        assert isinstance(caught.value.__cause__, kind)
        assert str(caught.value) == (
            f"no connection to {address} within 0.3 seconds: {address}: {caught.value.__cause__}"
        )


class TestBlocking:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.mark.parametrize("way", ["run", "run in threads", "for", "receive", "batches", "wait_connected"])
    def test_a_blocking_consumer_ends(self, way: str, nsqd: NsqdServer):
        with (
            BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], tls_v1=True, **ENDING) as consumer,
            pytest.raises(NegotiationFailed),
        ):
            match way:
                case "run":
                    consumer.run(print)
                case "run in threads":
                    consumer.run(print, concurrency=2)
                case "for":
                    list(consumer)
                case "receive":
                    consumer.receive()
                case "batches":
                    list(consumer.batches(10, 0.1))
                case _:
                    consumer.wait_connected()

    def test_a_blocking_publish_raises(self, nsqd: NsqdServer):
        with BlockingProducer(nsqd.tcp_address, tls_v1=True, connect_timeout=3600, **ENDING) as producer:
            with pytest.raises(NegotiationFailed):
                producer.publish("t", b"x")
