from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import EndOfStream
from anyio.abc import ByteStream, SocketAttribute

from nsqkit.errors import OptionError
from nsqkit.transport import tcp
from nsqkit.transport.accept import remote_address
from nsqkit.transport.asyncio_stream import AsyncioStream, asyncio_loop
from nsqkit.transport.tcp import connect_path, connect_tcp, listen
from tests.peers import settle

pytestmark = pytest.mark.anyio

SYSTEM_BACKLOG = int(Path("/proc/sys/net/core/somaxconn").read_text(encoding="ascii"))


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """A client's stream and the server's."""
    accepted: list[ByteStream] = []
    came = anyio.Event()

    async def serve(stream: ByteStream) -> None:
        accepted.append(stream)
        came.set()

    async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve, tasks)
        async with await connect_tcp(*listener.local_address) as client:
            await came.wait()
            async with accepted[0]:
                yield client, accepted[0]
        tasks.cancel_scope.cancel()


async def test_bytes_pass_in_both_directions() -> None:
    async with connected() as (client, server):
        await client.send(b"to the server")
        assert await server.receive() == b"to the server"
        await server.send(b"to the client")
        await server.send_eof()
        assert await client.receive() == b"to the client"
        with pytest.raises(EndOfStream):
            await client.receive()
        await client.send(b"still")
        assert await server.receive() == b"still"


async def test_both_ends_have_both_addresses() -> None:
    async with connected() as (client, server):
        for here, there in ((SocketAttribute.local_address, SocketAttribute.remote_address),):
            assert client.extra(here) == server.extra(there)
            assert client.extra(there) == server.extra(here)


async def test_asyncio_uses_asyncio_stream(anyio_backend_name: str) -> None:
    async with connected() as (client, server):
        assert isinstance(client, AsyncioStream) is (anyio_backend_name == "asyncio")
        assert isinstance(server, AsyncioStream) is (anyio_backend_name == "asyncio")


async def test_used_port_is_named() -> None:
    async with await listen("127.0.0.1:0") as listener:
        address = f"127.0.0.1:{listener.local_address[1]}"
        with pytest.raises(OSError, match=rf"listen \({address}\) failed - "):
            await listen(address)


async def test_refused_connection_is_os_error() -> None:
    async with await listen("127.0.0.1:0") as listener:
        port = listener.local_address[1]
    with pytest.raises(OSError, match=r"."):
        await connect_tcp("127.0.0.1", port)


# ---- hosts with several addresses -------------------------------------------------------------------------------

BACKENDS = pytest.mark.parametrize(
    "anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True}), "trio"], ids=["asyncio", "uvloop", "trio"]
)
HOST = "nsqd.test"


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that determines the IPv4 addresses of ``HOST``."""

    def resolve(*ips: str) -> None:
        real = socket.getaddrinfo

        def found(host: str | bytes, port: int, *args: Any, **options: Any) -> list[Any]:
            names = ips if host in (HOST, HOST.encode()) else [host]
            return [entry for name in names for entry in real(name, port, *args, **options)]

        async def found_by_loop(_: object, host: str, port: int, **options: Any) -> list[Any]:
            return found(host, port, **options)

        monkeypatch.setattr(socket, "getaddrinfo", found)
        if (loop := asyncio_loop()) is not None:  # uvloop does not use Python's function
            monkeypatch.setattr(type(loop), "getaddrinfo", found_by_loop)

    return resolve


@contextmanager
def dropping(ip: str, port: int) -> Iterator[None]:
    """Listen at an address that answers no more attempts to connect, since its backlog is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ip, port))
        listener.listen(0)
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex((ip, port))
        yield


async def test_host_with_one_address(resolve: Callable[..., None]) -> None:
    resolve("127.0.0.1", "127.0.0.1")
    async with await listen("127.0.0.1:0") as listener:
        port = listener.local_address[1]
        async with await connect_tcp(HOST, port, local_host="127.0.0.2") as stream:
            assert stream.extra(SocketAttribute.local_address)[0] == "127.0.0.2"
            assert stream.extra(SocketAttribute.remote_address) == ("127.0.0.1", port)
            sock = stream.extra(SocketAttribute.raw_socket)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with pytest.raises(OSError, match=r".") as caught:
        await connect_tcp(HOST, port)
    assert str(caught.value).count("127.0.0.1") <= 1


@BACKENDS
async def test_address_that_drops_packets_does_not_hold_up_the_next_one(resolve: Callable[..., None]) -> None:
    resolve("127.0.0.2", "127.0.0.1")
    async with await listen("127.0.0.1:0") as listener:
        with dropping("127.0.0.2", listener.local_address[1]), anyio.fail_after(60):
            async with await connect_tcp(HOST, listener.local_address[1]) as stream:
                assert stream.extra(SocketAttribute.remote_address) == listener.local_address


@BACKENDS
async def test_refused_address_does_not_hold_up_the_next_one(
    resolve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "ATTEMPT_DELAY", 1e9)
    resolve("127.0.0.2", "127.0.0.1")
    async with await listen("127.0.0.1:0") as listener:
        async with await connect_tcp(HOST, listener.local_address[1]) as stream:
            assert stream.extra(SocketAttribute.remote_address) == listener.local_address
    with pytest.raises(OSError, match=r"failed|refused"):
        await connect_tcp(HOST, listener.local_address[1])


@BACKENDS
async def test_cancelled_attempts_leave_no_sockets(
    resolve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "ATTEMPT_DELAY", 0)
    resolve("127.0.0.2", "127.0.0.3")
    async with await listen("127.0.0.1:0") as listener:
        port = listener.local_address[1]
    with dropping("127.0.0.2", port), dropping("127.0.0.3", port):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connect_tcp, HOST, port)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_connections_of_the_same_turn_leave_no_sockets(
    is_cancelled: bool, resolve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    connected: list[socket.socket] = []
    both = anyio.Event()
    sock_connect = loop.sock_connect

    async def connect_both(sock: socket.socket, address: Any) -> None:
        await sock_connect(sock, address)
        connected.append(sock)
        if len(connected) == 2:
            both.set()
        else:
            await both.wait()
        if is_cancelled:
            scope.cancel()

    monkeypatch.setattr(loop, "sock_connect", connect_both)
    monkeypatch.setattr(tcp, "ATTEMPT_DELAY", 0)
    resolve("127.0.0.2", "127.0.0.1")
    async with await listen("0.0.0.0:0") as listener:
        with anyio.CancelScope() as scope:
            await (await connect_tcp(HOST, listener.local_address[1])).aclose()
    assert scope.cancelled_caught is is_cancelled
    assert [sock.fileno() for sock in connected] == [-1, -1]


async def test_invalid_address_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'127\.0\.0\.1:nsqd'"):
        await listen("127.0.0.1:nsqd")
    with pytest.raises(OptionError, match=r"'nsqd\.sock'"):
        await listen("nsqd.sock", paths=False)


@pytest.mark.parametrize("host", ["", "0.0.0.0"])
async def test_every_interface_includes_both_families(host: str) -> None:
    async with await listen(f"{host}:0") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, lambda stream: stream.aclose(), tasks)
        for local in ("127.0.0.1", "::1"):
            stream = await connect_tcp(local, listener.local_address[1])
            with pytest.raises((EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
            await stream.aclose()
        tasks.cancel_scope.cancel()


async def test_closed_listener_accepts_nothing() -> None:
    async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, lambda stream: stream.aclose(), tasks)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    with pytest.raises(OSError, match=r"."):
        await connect_tcp(*listener.local_address)


@pytest.mark.parametrize("place", ["{}/nsqd.sock", "@{}"])
async def test_listen_on_unix_socket(tmp_path: Path, place: str, anyio_backend_name: str) -> None:
    path = place.format(tmp_path)
    peers: list[str] = []

    async def echo(stream: ByteStream) -> None:
        async with stream:
            peers.append(remote_address(stream))
            await stream.send(await stream.receive())

    async with await listen(path) as listener, anyio.create_task_group() as tasks:
        assert listener.address == path
        tasks.start_soon(listener.serve, echo, tasks)
        for own_name in (None, f"{tmp_path}/peer", f"\0{tmp_path}/peer"):
            with socket.socket(socket.AF_UNIX) as sock:
                if own_name:
                    sock.bind(own_name)
                sock.connect("\0" + path[1:] if path.startswith("@") else path)
                sock.sendall(b"hello")
                sock.setblocking(False)
                with anyio.fail_after(60):
                    await anyio.wait_readable(sock)
                assert sock.recv(10) == b"hello"
        tasks.cancel_scope.cancel()
    assert peers == ["@", f"{tmp_path}/peer", f"@{tmp_path}/peer"]
    assert os.listdir(tmp_path) == ["peer"]


async def test_existing_path_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with pytest.raises(OSError, match=rf"listen \({path}\) failed - Address already in use"):
        await listen(str(path))
    assert stat.S_ISSOCK(path.stat().st_mode)


async def test_unusable_path_is_named(tmp_path: Path) -> None:
    for path in (f"{tmp_path}/missing/nsqd.sock", f"/{'long' * 50}"):
        with pytest.raises(OSError, match=rf"listen \({path}\) failed - "):
            await listen(path)


async def test_socket_without_its_file_can_be_closed(tmp_path: Path) -> None:
    async with await listen(f"{tmp_path}/nsqd.sock") as listener:
        os.unlink(listener.address)


@pytest.mark.parametrize("place", ["{}/nsqd.sock", "@{}/nsqd"])
async def test_connect_to_unix_socket(tmp_path: Path, place: str) -> None:
    path = place.format(tmp_path)

    async def echo(stream: ByteStream) -> None:
        async with stream:
            await stream.send(await stream.receive())

    async with await listen(path) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo, tasks)
        async with await connect_path(path) as client:
            await client.send(b"hello")
            assert await client.receive() == b"hello"
        tasks.cancel_scope.cancel()


async def test_connect_to_missing_unix_socket_is_os_error(tmp_path: Path) -> None:
    for path in (f"{tmp_path}/missing.sock", f"@{tmp_path}/missing", f"/{'long' * 50}"):
        with pytest.raises(OSError, match=r"No such file|refused|too long"):
            await connect_path(path)


async def test_many_connections_can_wait_to_be_accepted() -> None:
    """The kernel completes connections while this program is busy."""
    count = min(1000, SYSTEM_BACKLOG)
    accepted = 0
    all_came = anyio.Event()

    async def serve(stream: ByteStream) -> None:
        nonlocal accepted
        accepted += 1
        if accepted == count:
            all_came.set()
        await stream.aclose()

    with anyio.fail_after(60):
        async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve, tasks)
            await settle()
            with ExitStack() as stack:
                for _ in range(count):
                    stack.enter_context(socket.create_connection(listener.local_address, timeout=0.5))
                await all_came.wait()
            tasks.cancel_scope.cancel()
