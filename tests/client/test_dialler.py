from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from nsqkit.client.dialler import Dialler
from nsqkit.client.options import ConnectionOptions
from nsqkit.client.session import ClientSession
from nsqkit.errors import OptionError
from nsqkit.transport.address import join_address
from nsqkit.transport.memory import memory_pair
from nsqkit.transport.tcp import Listener, listen
from nsqkit.wire.transform import SecureTransform
from tests.certificates import write_files

pytestmark = pytest.mark.anyio


async def handshake(stream: ByteStream) -> None:
    async with stream:
        await stream.send(b"hello")


async def check_reaches(listener: Listener, **options: Any) -> object:
    """Check that a listener is reached; return the local address."""
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handshake, tasks)
        with anyio.fail_after(15):
            async with await Dialler(ConnectionOptions(**options))(listener.address) as stream:
                assert await stream.receive() == b"hello"
                local = stream.extra(SocketAttribute.local_address, None)
        tasks.cancel_scope.cancel()
    return local


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:0",
        "localhost:0",
        pytest.param("[::1]:0", marks=pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")),
    ],
)
async def test_dial_connects_to_tcp_listener(address):
    await check_reaches(await listen(address))


@pytest.mark.parametrize("place", ["{}/nsqd.sock", "@{}/nsqd"])
async def test_dial_connects_to_unix_socket(tmp_path: Path, place: str):
    await check_reaches(await listen(place.format(tmp_path)), local_addr="127.0.0.1")


async def test_dial_uses_local_addr():
    local = await check_reaches(await listen("127.0.0.1:0"), local_addr="127.0.0.2")
    assert isinstance(local, tuple)
    assert local[0] == "127.0.0.2"


async def test_refused_connection_is_os_error(tmp_path):
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        for address in (join_address(*taken.getsockname()), f"{tmp_path}/none.sock"):
            with pytest.raises(OSError, match=r"."):
                await Dialler(ConnectionOptions())(address)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "\udc80"])
async def test_invalid_host_name_is_os_error(host):
    with pytest.raises(OSError, match=r"."):
        await Dialler(ConnectionOptions())(f"{host}:4150")


async def test_dial_function_can_be_replaced():
    ours, theirs = memory_pair()
    asked: list[str] = []

    async def dial(address: str) -> ByteStream:
        asked.append(address)
        return ours

    async with ours, theirs:
        assert await Dialler(ConnectionOptions(), dial)("nsqd:4150") is ours
    assert asked == ["nsqd:4150"]


class Secured(ClientSession[Any]):
    """A session that records the arguments of ``secure``."""

    def __init__(self) -> None:
        self.make_tls: Callable[[], SecureTransform] | None = None
        self.auth_secret = "?"

    def secure(self, *, make_tls: Callable[[], SecureTransform] | None = None, auth_secret: str = "") -> None:
        self.make_tls, self.auth_secret = make_tls, auth_secret


async def test_secure_sets_tls_and_secret(tmp_path):
    plain, secured = Secured(), Secured()
    Dialler(ConnectionOptions()).secure(plain, "nsqd:4150")
    assert (plain.make_tls, plain.auth_secret) == (None, "")
    files = write_files(tmp_path)
    options = ConnectionOptions(tls_v1=True, tls_root_ca_file=files.authority, auth_secret="hush")
    dialler = Dialler(options)
    dialler.secure(secured, "localhost:4150")
    assert secured.auth_secret == "hush"
    assert secured.make_tls is not None
    one, other = secured.make_tls(), secured.make_tls()
    assert one is not other
    assert one.has_output


def test_unusable_file_is_refused_at_construction():
    with pytest.raises(OptionError, match=r"tls_root_ca_file is 'missing\.pem', which cannot be read"):
        Dialler(ConnectionOptions(tls_v1=True, tls_root_ca_file="missing.pem"))
