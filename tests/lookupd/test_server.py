from __future__ import annotations

import logging
import platform
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from nsqkit.clock import ManualClock
from nsqkit.errors import OptionError
from nsqkit.lookupd.options import LookupdOptions
from nsqkit.lookupd.server import Nsqlookupd
from nsqkit.lookupd.session import Session
from nsqkit.transport.address import split_address
from nsqkit.transport.tcp import connect_tcp
from nsqkit.wire.identify import BROKER_VERSION
from nsqkit.wire.lookup import (
    MAGIC_V1,
    PING,
    AnswerDecoder,
    LookupdInfo,
    Node,
    decode_info,
    encode_identify,
    encode_register,
)

pytestmark = pytest.mark.anyio

NODE = Node(broadcast_address="b", tcp_port=4150, http_port=4151, version="1.3.0")


def options(**values: Any) -> LookupdOptions:
    return LookupdOptions(**{"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0", **values})


class Client:
    """An nsqd that sends bytes and reads answers."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._decoder = AnswerDecoder(answer_size_max=1 << 21)
        self._answers: list[bytes] = []

    async def ask(self, command: bytes) -> bytes:
        await self.stream.send(command)
        return await self.answer()

    async def answer(self) -> bytes:
        with anyio.fail_after(60):
            while not self._answers:
                self._answers += self._decoder.feed(await self.stream.receive())
        return self._answers.pop(0)

    async def is_closed(self) -> bool:
        """Wait until the other end has closed the connection; return False if it has sent more."""
        assert self._answers == []
        with anyio.fail_after(60):
            try:
                return not await self.stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return True


@asynccontextmanager
async def connected(lookupd: Nsqlookupd) -> AsyncIterator[Client]:
    async with await connect_tcp(*split_address(lookupd.tcp_address)) as stream:
        client = Client(stream)
        assert await client.ask(MAGIC_V1 + PING) == b"OK"
        yield client


async def get(lookupd: Nsqlookupd, target: str) -> bytes:
    """Return the body of an answer to GET."""
    async with await connect_tcp(*split_address(lookupd.http_address)) as stream:
        await stream.send(f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        with anyio.fail_after(60), pytest.raises(anyio.EndOfStream):
            while True:
                answer += await stream.receive()
    return answer.partition(b"\r\n\r\n")[2]


# ---- start and stop ---------------------------------------------------------------------------------------------


async def test_server_answers_inside_the_block_only() -> None:
    async with Nsqlookupd(options()) as lookupd:
        assert lookupd.tcp_address.startswith("127.0.0.1:")
        assert await get(lookupd, "/ping") == b"OK"
        async with await connect_tcp(*split_address(lookupd.tcp_address)) as stream:
            client = Client(stream)
            assert await client.ask(MAGIC_V1 + PING) == b"OK"
            idle = await connect_tcp(*split_address(lookupd.http_address))
            await lookupd.__aexit__(None, None, None)
            assert await client.is_closed()
            assert await Client(idle).is_closed()
            await idle.aclose()
        for address in (lookupd.tcp_address, lookupd.http_address):
            with pytest.raises(OSError, match=r"."):
                await connect_tcp(*split_address(address))
        await lookupd.__aenter__()


async def test_defaults_are_nsqlookupds_options_and_the_real_time() -> None:
    lookupd = Nsqlookupd()
    assert lookupd.options == LookupdOptions()
    assert lookupd.clock.now_ns() > 1_700_000_000 * 10**9


@pytest.mark.parametrize("name", ["tcp_address", "http_address"])
async def test_an_address_in_use_is_named_and_everything_is_closed(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        lookupd = Nsqlookupd(options(**{name: address}))
        with pytest.raises(OSError, match=rf"listen \({address}\) failed - "):
            await lookupd.__aenter__()
    assert lookupd.tcp_address == ""


async def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(OptionError, match=r"address '' is not host:port"):
        await Nsqlookupd(options(http_address="")).__aenter__()


async def test_an_exception_in_the_block_is_raised_unchanged() -> None:
    with pytest.raises(KeyError):
        async with Nsqlookupd(options()):
            raise KeyError("the user's")


async def test_server_can_be_cancelled() -> None:
    with anyio.move_on_after(5) as scope:
        async with Nsqlookupd(options()) as lookupd, connected(lookupd):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_connections_and_changes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsqkit.lookupd")
    async with Nsqlookupd(options(), clock=ManualClock()) as lookupd:
        async with connected(lookupd) as client:
            name = "{}:{}".format(*client.stream.extra(SocketAttribute.local_address))
            await client.ask(encode_identify(NODE))
            await client.ask(encode_register(b"t"))
            await client.ask(PING)
            await client.ask(b"FO\xff\n")
            assert await client.is_closed()
    assert caplog.messages == [
        f"TCP: listening on {lookupd.tcp_address}",
        f"HTTP: listening on {lookupd.http_address}",
        f"TCP: new client({name})",
        f"CLIENT({name}): IDENTIFY Address:b TCP:4150 HTTP:4151 Version:1.3.0",
        f"DB: client({name}) REGISTER category:client key: subkey:",
        f"DB: client({name}) REGISTER category:topic key:t subkey:",
        f"CLIENT({name}): pinged (last ping 0s)",
        f"[{name}] - E_INVALID invalid command FO\\udcff",
        f"PROTOCOL(V1): [{name}] exiting ioloop - refused",
        f"DB: client({name}) UNREGISTER category:topic key:t subkey:",
        f"DB: client({name}) UNREGISTER category:client key: subkey:",
        "stopped",
    ]


# ---- nsqds ------------------------------------------------------------------------------------------------------


async def test_identify_is_answered_with_the_nsqlookupds_data() -> None:
    async with Nsqlookupd(options(broadcast_address="l")) as lookupd, connected(lookupd) as client:
        assert decode_info(await client.ask(encode_identify(NODE))) == LookupdInfo(
            broadcast_address="l",
            hostname=platform.node(),
            http_port=split_address(lookupd.http_address)[1],
            tcp_port=split_address(lookupd.tcp_address)[1],
            version=BROKER_VERSION,
        )


async def test_registrations_are_removed_before_the_connection_is_closed() -> None:
    async with Nsqlookupd(options()) as lookupd, connected(lookupd) as client:
        await client.ask(encode_identify(NODE))
        await client.ask(encode_register(b"t", b"c"))
        assert b'"broadcast_address":"b"' in await get(lookupd, "/lookup?topic=t")
        assert await client.ask(b"FOO\n") == b"E_INVALID invalid command FOO"
        assert await client.is_closed()
        assert await get(lookupd, "/lookup?topic=t") == b'{"channels":["c"],"producers":[]}'


@pytest.mark.parametrize("reset", [False, True])
async def test_a_disconnected_nsqd_is_not_returned(reset: bool) -> None:
    async with Nsqlookupd(options()) as lookupd:
        with socket.create_connection(split_address(lookupd.tcp_address)) as gone:
            gone.sendall(MAGIC_V1 + encode_identify(NODE))
            with anyio.fail_after(60):
                while await get(lookupd, "/nodes") == b'{"producers":[]}':
                    pass
            if reset:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with anyio.fail_after(60):
            while await get(lookupd, "/nodes") != b'{"producers":[]}':
                pass


@pytest.mark.parametrize("sent", [b"", MAGIC_V1, b"GET /ping HT"])
async def test_clients_that_disconnect_before_they_are_accepted(sent: bytes) -> None:
    async with Nsqlookupd(options()) as lookupd:
        for address in (lookupd.tcp_address, lookupd.http_address):
            with socket.create_connection(split_address(address)) as gone:
                gone.sendall(sent)
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with connected(lookupd) as client:
            assert await client.ask(PING) == b"OK"


async def test_an_nsqd_that_half_closes_is_answered_first() -> None:
    async with Nsqlookupd(options()) as lookupd, connected(lookupd) as client:
        await client.stream.send(PING + b"IDENTIFY\n\0")
        await client.stream.send_eof()
        assert await client.answer() == b"OK"
        assert await client.answer() == b"E_BAD_BODY IDENTIFY failed to read body size"
        assert await client.is_closed()


async def test_activity_follows_the_clock() -> None:
    clock = ManualClock()
    given = options(inactive_producer_timeout_ns=10**9)
    async with Nsqlookupd(given, clock=clock) as lookupd, connected(lookupd) as client:
        await client.ask(encode_identify(NODE))
        clock.advance(1.5)
        assert await get(lookupd, "/nodes") == b'{"producers":[]}'
        await client.ask(PING)
        assert await get(lookupd, "/nodes") != b'{"producers":[]}'


# ---- bad clients ------------------------------------------------------------------------------------------------


async def test_64_clients_with_random_bytes_do_not_affect_others() -> None:
    random = Random(64)
    parts = [
        *(MAGIC_V1, b"PING\n", b"REGISTER t c\n", b"IDENTIFY\n", b"\n", b" ", b"\0\0\0\5{}", b"\xff" * 9),
        *(encode_identify(NODE), b"UNREGISTER t\n", b"\x7f\xff\xff\xff", b"x" * 5000),
    ]

    async def babble(number: int) -> None:
        sent = [random.choice(parts) if random.random() < 0.9 else random.randbytes(40) for _ in range(20)]
        if number % 2:
            sent.insert(0, MAGIC_V1)
        try:
            async with await connect_tcp(*split_address(lookupd.tcp_address)) as stream:
                for each in sent:
                    await stream.send(each)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass

    async with Nsqlookupd(options()) as lookupd, connected(lookupd) as witness:
        await witness.ask(encode_identify(NODE))
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(64):
                    tasks.start_soon(babble, number)
        assert await witness.ask(encode_register(b"w")) == b"OK"
        assert b'"broadcast_address":"b"' in await get(lookupd, "/lookup?topic=w")
        with anyio.fail_after(60):
            while len(lookupd.registry.active_peers(lookupd.clock.now_ns())) > 1:
                await anyio.lowlevel.checkpoint()


async def test_an_internal_error_with_one_nsqd_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    works = Session.receive_data

    def fails(session: Session, data: bytes, now_ns: int) -> None:
        if data == b"FAULT\n":
            raise KeyError("a fault")
        works(session, data, now_ns)

    monkeypatch.setattr(Session, "receive_data", fails)
    async with Nsqlookupd(options()) as lookupd, connected(lookupd) as good, connected(lookupd) as bad:
        await bad.ask(encode_identify(NODE))
        await bad.stream.send(b"FAULT\n")
        assert await bad.is_closed()
        assert await good.ask(PING) == b"OK"
        assert await get(lookupd, "/nodes") == b'{"producers":[]}'
    assert [record.getMessage().partition("] - ")[2] for record in caplog.records if record.exc_info] == [
        "internal error"
    ]
