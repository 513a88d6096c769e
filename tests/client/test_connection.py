from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.client.connection import Connection
from nsqkit.client.dialler import Dial, Dialler
from nsqkit.client.options import ConnectionOptions
from nsqkit.client.reconnect import Reconnect
from nsqkit.client.session import ClientSession
from nsqkit.clock import NS_PER_S, ManualClock
from nsqkit.errors import (
    AuthFailed,
    BadTopic,
    BrokerError,
    Closed,
    ConnectionLost,
    ConnectTimeout,
    HeartbeatTimeout,
    NegotiationFailed,
    NotConnected,
    ProtocolError,
    Unauthorized,
    WriteTimeout,
)
from nsqkit.transport.memory import BUFFERED_WRITES_MAX
from nsqkit.wire.auth import AuthAnswer, encode_answer
from nsqkit.wire.commands import encode_publish, encode_ready, encode_subscribe
from nsqkit.wire.frames import HEARTBEAT_FRAME, MessageFrame, Response, encode_response, message_frames
from tests.certificates import HOST, write_files
from tests.peers import ADDRESS, BACKENDS, WAIT_LIMIT, Peer, ScriptedBroker, settle

pytestmark = pytest.mark.anyio
in_memory = pytest.mark.parametrize("anyio_backend", BACKENDS)

DIAL_TIMEOUT = 30.0
LINGER = 1.0
"""Seconds; the default of ``Pump``."""

RETRY = 10.0
"""Seconds; longer than any delay."""


class Longest(Random):
    """Draws the longest delays."""

    def randrange(self, start, stop=None, step=1):
        return start - 1


class Session(ClientSession[MessageFrame]):
    """A session that records its frames."""

    def __init__(self, options: ConnectionOptions, now_ns: int) -> None:
        super().__init__(
            options.identify_request("here"),
            read_timeout_ns=60 * NS_PER_S,
            max_msg_size=1 << 20,
            now_ns=now_ns,
        )
        self.frames: list[Any] = []

    def _make_messages(self, rows):
        return message_frames(rows)

    def _on_frames(self, frames: list[Any], now_ns: int) -> None:
        for frame in frames:
            if isinstance(frame, BrokerError):
                raise frame
            if not (isinstance(frame, Response) and self._answer_heartbeat(frame)):
                self.frames.append(frame)


class Bench:
    """A connection, by default to a scripted broker.

    Args:
        dial: connects to another broker.
        options: of the connection.
    """

    def __init__(self, dial: Dial | None = None, *, dial_timeout: float = DIAL_TIMEOUT, **options: Any) -> None:
        self.broker = ScriptedBroker()
        self.options = ConnectionOptions(**options)
        self.clock = ManualClock()
        self.changes: list[tuple[bool, bool]] = []
        self._changed = anyio.Event()
        self.reconnect = Reconnect(delay_min_ns=NS_PER_S, delay_max_ns=8 * NS_PER_S, random=Longest())
        self.connection: Connection[Session] = Connection(
            ADDRESS,
            self._make_session,
            clock=self.clock,
            dial=Dialler(self.options, dial or self.broker.dial),
            dial_timeout=dial_timeout,
            reconnect=self.reconnect,
            on_change=self._on_change,
        )

    def _make_session(self, now_ns: int) -> Session:
        return Session(self.options, now_ns)

    def _on_change(self, connection: Connection[Session], now_ns: int) -> None:
        session = connection.session
        self.changes.append((session is not None and session.is_open, connection.is_running))
        self._changed.set()
        self._changed = anyio.Event()

    @property
    def session(self) -> Session:
        assert self.connection.session is not None
        return self.connection.session

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when ``condition`` is true; it is checked after each change."""
        with anyio.fail_after(15):
            while not condition():
                await self._changed.wait()

    async def wait_open(self) -> None:
        """Return when the session is open."""
        await self.until(lambda: self.connection.session is not None and self.session.is_open)

    async def wait_error(self, kind: type[Exception]) -> Exception:
        """Return the connection's error once it is of this kind, if necessary after the pump's ``linger``."""
        await settle()
        if not isinstance(self.connection.error, kind):
            self.clock.advance(LINGER)
        with anyio.fail_after(WAIT_LIMIT):
            while not isinstance(self.connection.error, kind):
                await self._changed.wait()
        error = self.connection.error
        assert error is not None
        return error

    async def retry(self) -> None:
        """Advance the clock past the delay before the next dialling."""
        await settle()
        self.clock.advance(RETRY)
        await settle()


@asynccontextmanager
async def running(dial: Dial | None = None, **options: Any) -> AsyncIterator[Bench]:
    bench = Bench(dial, **options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.connection.run)
        yield bench
        tasks.cancel_scope.cancel()
    assert not bench.connection.is_running


@in_memory
class TestHandshake:
    async def test_connection_after_handshake_is_open_without_error(self):
        async with running() as bench, await bench.broker.accept() as peer:
            assert not bench.session.is_open
            await peer.handshake()
            await settle()
            assert bench.session.is_open
            assert bench.connection.error is None
            assert bench.changes[-1] == (True, True)

    async def test_dial_timeout_does_not_end_open_connection(self):
        async with running() as bench, await bench.broker.handshake():
            await settle()
            bench.clock.advance(DIAL_TIMEOUT * 1.5)
            await settle()
            assert bench.session.is_open

    async def test_unreachable_address_is_dialled_again_after_growing_delays(self):
        async with running() as bench:
            bench.broker.refusal = ConnectionRefusedError(111, "Connection refused")
            for delay in (1, 2, 4, 8, 8):
                await settle()
                dial_count = bench.broker.dial_count
                error = bench.connection.error
                assert isinstance(error, NotConnected)
                assert str(error) == f"cannot connect to {ADDRESS}: [Errno 111] Connection refused"
                assert error.__cause__ is bench.broker.refusal
                bench.clock.advance(delay - 0.001)
                await settle()
                assert bench.broker.dial_count == dial_count
                bench.clock.advance(0.001)
                await settle()
                assert bench.broker.dial_count == dial_count + 1
            assert bench.connection.session is None
            assert bench.changes[-1] == (False, True)

    async def test_dial_that_raises_nsq_error_is_repeated(self):
        async with running() as bench:
            bench.broker.refusal = Closed("the broker is not running")
            await bench.wait_error(NotConnected)
            bench.broker.refusal = None
            await bench.retry()
            async with await bench.broker.handshake():
                await settle()
                assert bench.session.is_open

    async def test_other_error_of_dial_is_raised(self):
        bench = Bench()
        bench.broker.refusal = ZeroDivisionError()
        with pytest.RaisesGroup(ZeroDivisionError):
            await bench.connection.run()
        assert not bench.connection.is_running

    async def test_hanging_dial_times_out(self):
        async with running() as bench:
            bench.broker.hanging = True
            await settle()
            bench.clock.advance(DIAL_TIMEOUT - 0.001)
            await settle()
            assert bench.connection.error is None
            bench.clock.advance(0.001)
            error = await bench.wait_error(ConnectTimeout)
            assert str(error) == f"{ADDRESS} did not answer within 30 seconds"
            await bench.retry()
            assert bench.broker.dial_count == 2

    async def test_silent_handshake_times_out(self):
        async with running() as bench, await bench.broker.accept() as peer:
            await settle()
            bench.clock.advance(DIAL_TIMEOUT)
            await bench.wait_error(ConnectTimeout)
            assert isinstance(bench.session.error, ConnectTimeout)
            assert await peer.take(4) == b"  V2"
            await bench.retry()
            async with await bench.broker.handshake():
                await settle()
                assert bench.connection.error is None

    async def test_refusal_is_reported_if_broker_does_not_close(self):
        async with running() as bench, await bench.broker.accept() as peer:
            await peer.send(BadTopic('PUB topic name "!" is not valid'))
            assert str(await bench.wait_error(BadTopic)).startswith("E_BAD_TOPIC PUB")

    async def test_other_server_is_reported(self):
        async with running() as bench, await bench.broker.accept() as peer:
            await peer.send(b"220 mail.example.org ESMTP\r\n")
            await bench.wait_error(ProtocolError)


@in_memory
class TestEnd:
    async def test_lost_connection_is_dialled_again(self):
        async with running() as bench:
            for _ in range(3):
                peer = await bench.broker.handshake()
                await settle()
                assert bench.session.is_open
                await peer.close()
                await bench.wait_error(ConnectionLost)
                assert not bench.session.is_open
                assert bench.reconnect.failure_count == 1  # reset by the handshake
                await bench.retry()
            async with await bench.broker.handshake():
                await settle()
                assert bench.connection.error is None

    async def test_connection_lost_within_frame_is_reported(self):
        async with running() as bench:
            peer = await bench.broker.handshake()
            await peer.send(b"\0\0\0\x06\0\0")
            await peer.close()
            await bench.wait_error(ConnectionLost)

    async def test_silent_broker_is_disconnected(self):
        async with running() as bench:
            peer = await bench.broker.handshake()
            await settle()
            bench.clock.advance(59.9)
            await settle()
            assert bench.session.is_open
            bench.clock.advance(0.1)
            await peer.wait_end()
            await peer.close()
            assert str(await bench.wait_error(HeartbeatTimeout)) == "the broker was silent for 60 seconds"
            await bench.retry()
            async with await bench.broker.accept():
                pass

    async def test_stop_lets_current_session_end(self):
        bench = Bench()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.connection.run)
            peer = await bench.broker.handshake()
            await settle()
            bench.connection.stop()
            await settle()
            assert bench.session.is_open
            bench.session.send(b"last")
            bench.session.end(None)
            bench.connection.wake()
            assert await peer.take(4) == b"last"
            await peer.wait_end()
            await peer.close()
        assert not bench.connection.is_running
        assert bench.connection.error is None
        assert bench.changes[-1] == (False, False)
        assert bench.broker.dial_count == 1

    async def test_stop_before_run_dials_nothing(self):
        bench = Bench()
        bench.connection.stop()
        await bench.connection.run()
        assert bench.broker.dial_count == 0

    async def test_stop_during_delay_dials_nothing(self):
        bench = Bench()
        bench.broker.refusal = ConnectionRefusedError()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.connection.run)
            await settle()
            bench.connection.stop()
            bench.clock.advance(RETRY)
        assert bench.broker.dial_count == 1

    @pytest.mark.parametrize("state", ["dialling", "handshake", "open", "delayed", "lingering"])
    async def test_cancellation_in_any_state_leaves_nothing(self, state):
        async with running() as bench:
            bench.broker.hanging = state == "dialling"
            bench.broker.refusal = ConnectionRefusedError() if state == "delayed" else None
            peer = None
            if state in {"handshake", "open", "lingering"}:
                peer = await bench.broker.accept()
            if state in {"open", "lingering"} and peer is not None:
                await peer.handshake()
                await settle()
                if state == "lingering":
                    bench.session.end(None)
                    bench.connection.wake()
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
        if peer is not None:
            assert bench.session.ended
            if state != "lingering":
                assert isinstance(bench.session.error, ConnectionLost)
            if state == "handshake":
                assert await peer.take(4) == b"  V2"
                await peer.command()
            await peer.wait_end()
            await peer.close()

    async def test_wake_without_connection_is_harmless(self):
        bench = Bench()
        bench.connection.wake()


@in_memory
async def test_silent_broker_that_never_closes_is_disconnected():
    async with running() as bench, await bench.broker.handshake():
        await settle()
        bench.clock.advance(60)
        await bench.wait_error(HeartbeatTimeout)


@in_memory
class TestWriteTimeout:
    async def test_broker_that_reads_nothing_is_dialled_again(self):
        async with running(write_timeout=0.1) as bench:
            peer = await bench.broker.handshake()
            await bench.wait_open()
            for _ in range(2 * BUFFERED_WRITES_MAX):
                bench.session.send(b"x")
                bench.connection.wake()
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
            assert str(await bench.wait_error(WriteTimeout)) == "the peer took nothing for 0.1 seconds"
            await bench.retry()
            async with await bench.broker.handshake():
                await bench.wait_open()
                assert bench.connection.handshake_count == 2
            await peer.close()


@in_memory
class TestAuth:
    async def asked(self, bench: Bench) -> Peer:
        """Return the next connection after its AUTH."""
        peer = await bench.broker.handshake(auth_required=True)
        assert await peer.line() == b"AUTH"
        assert await peer.body() == b"hush"
        return peer

    async def test_answer_to_auth_is_available(self):
        async with running(auth_secret="hush") as bench, await self.asked(bench) as peer:
            answer = AuthAnswer(identity="me", identity_url="https://example.org", permission_count=2)
            await peer.send(encode_response(encode_answer(answer)))
            await bench.wait_open()
            assert bench.session.auth == answer

    async def test_auth_can_take_longer_than_dial_timeout(self):
        async with running(auth_secret="hush") as bench, await self.asked(bench) as peer:
            await settle()
            bench.clock.advance(DIAL_TIMEOUT * 1.5)
            await settle()
            await peer.send(HEARTBEAT_FRAME)
            assert await peer.line() == b"NOP"
            await peer.send(encode_response(encode_answer(AuthAnswer())))
            await bench.wait_open()

    async def test_auth_times_out_despite_heartbeats(self):
        async with running(dial_timeout=0.05, auth_secret="hush", read_timeout=2.0, heartbeat_interval=1.0) as bench:
            async with await self.asked(bench) as peer:
                for _ in range(4):
                    await peer.send(HEARTBEAT_FRAME)
                    assert await peer.line() == b"NOP"
                    await settle()
                    assert not bench.session.ended
                    bench.clock.advance(0.6)
                error = await bench.wait_error(ConnectTimeout)
                assert str(error) == f"{ADDRESS} did not answer within 2.05 seconds"

    async def test_expired_grant_is_renewed_on_new_connection(self):
        async with running(auth_secret="hush") as bench:
            for error in (Unauthorized('AUTH failed for PUB on "t" ""'), AuthFailed("AUTH failed")):
                peer = await self.asked(bench)
                await peer.send(encode_response(encode_answer(AuthAnswer(identity="me"))))
                await bench.wait_open()
                await peer.send(error)
                await bench.wait_error(type(error))
                await peer.close()
                await bench.retry()
            async with await self.asked(bench):
                pass

    async def test_secret_is_not_logged(self, caplog):
        caplog.set_level(logging.DEBUG)
        async with running(auth_secret="hush") as bench:
            peer = await self.asked(bench)
            await peer.send(AuthFailed("AUTH failed"))
            await bench.wait_error(AuthFailed)
            await peer.close()
            await settle()
        assert "AUTH failed" in caplog.text
        assert "hush" not in caplog.text


@in_memory
class TestLog:
    async def test_log_records_have_the_address(self, caplog):
        caplog.set_level(logging.INFO, "nsqkit.client")
        async with running() as bench:
            bench.broker.refusal = ConnectionRefusedError("refused")
            await bench.wait_error(NotConnected)
            bench.broker.refusal = None
            await bench.retry()
            async with await bench.broker.handshake():
                await settle()
        assert [(record.name, record.levelname, vars(record)["nsqd_address"]) for record in caplog.records] == [
            ("nsqkit.client", "WARNING", ADDRESS),
            ("nsqkit.client", "INFO", ADDRESS),
            ("nsqkit.client", "INFO", ADDRESS),
        ]
        assert [record.getMessage() for record in caplog.records] == [
            f"[{ADDRESS}] cannot connect to {ADDRESS}: refused",
            f"[{ADDRESS}] dialling again in 1.000 s",
            f"[{ADDRESS}] connected",
        ]


@in_memory
class TestHook:
    async def test_on_connection_is_called_for_each_connection_and_failure(self):
        reported: list[tuple[str, type[Exception] | None]] = []
        async with running(on_connection=lambda *what: reported.append((what[0], what[1] and type(what[1])))) as bench:
            bench.broker.refusal = ConnectionRefusedError("refused")
            await bench.wait_error(NotConnected)
            bench.broker.refusal = None
            await bench.retry()
            peer = await bench.broker.handshake()
            await settle()
            await peer.close()
            await bench.wait_error(ConnectionLost)
        assert reported == [(ADDRESS, NotConnected), (ADDRESS, None), (ADDRESS, ConnectionLost)]

    async def test_on_connection_is_not_called_for_own_close(self):
        reported: list[object] = []
        bench = Bench(on_connection=lambda *what: reported.append(what))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.connection.run)
            peer = await bench.broker.handshake()
            await settle()
            bench.connection.stop()
            bench.session.end(None)
            bench.connection.wake()
            await peer.wait_end()
            await peer.close()
        assert reported == [(ADDRESS, None)]

    async def test_error_of_on_connection_is_logged(self, caplog):
        def fail(address: str, error: Exception | None) -> None:
            raise ValueError("no")

        async with running(on_connection=fail) as bench, await bench.broker.handshake():
            await settle()
            assert bench.session.is_open
        assert f"[{ADDRESS}] on_connection failed" in caplog.text


class TestLayers:
    """Connections to nsqkit's own broker."""

    @asynccontextmanager
    async def reaching(self, dial: Dial | None, nsqd: Nsqd, **options: Any) -> AsyncIterator[Bench]:
        async with nsqd:
            address = nsqd.tcp_address
            bench = Bench(dial or (lambda _: Dialler(ConnectionOptions())(address)), dial_timeout=15, **options)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bench.connection.run)
                yield bench
                tasks.cancel_scope.cancel()

    async def check_consumes(self, bench: Bench, *bodies: bytes) -> None:
        """Publish, subscribe and receive."""
        session = bench.session
        session.send(b"".join(encode_publish(b"t", body) for body in bodies))
        session.send(encode_subscribe(b"t", b"c") + encode_ready(100))
        bench.connection.wake()
        count = len(bodies) + 1
        await bench.until(lambda: len(session.frames) == 2 * len(bodies) + 1)
        assert session.frames[:count] == [Response(b"OK")] * count
        assert [frame.body for frame in session.frames[count:]] == list(bodies)

    @pytest.mark.parametrize("compression", [{}, {"snappy": True}, {"deflate": True, "deflate_level": 1}])
    @pytest.mark.parametrize("place", ["127.0.0.1:0", "{}/nsqd.sock"])
    async def test_connection_through_tls_and_compression(self, tmp_path: Path, compression, place):
        files = write_files(tmp_path)
        nsqd = Nsqd(
            BrokerOptions(
                tcp_address=place.format(tmp_path),
                http_address="",
                https_address="",
                tls_cert=files.certificate,
                tls_key=files.key,
                tls_required="true",
            )
        )
        options = {
            "tls_v1": True,
            "tls_root_ca_file": files.authority,
            "tls_server_name": HOST,
            **compression,
        }
        async with self.reaching(None, nsqd, **options) as bench:
            await bench.wait_open()
            answer = bench.session.answer
            assert answer is not None
            assert answer.tls_v1
            assert {name: getattr(answer, name) for name in compression} == compression
            await self.check_consumes(bench, b"hello " * 100, bytes(300_000))

    async def test_broker_with_wrong_certificate_is_dialled_again(self, tmp_path: Path):
        files = write_files(tmp_path)
        nsqd = Nsqd(
            BrokerOptions(
                tcp_address="127.0.0.1:0",
                http_address="",
                https_address="",
                tls_cert=files.certificate,
                tls_key=files.key,
            )
        )
        async with self.reaching(None, nsqd, tls_v1=True) as bench:
            error = await bench.wait_error(NegotiationFailed)
            assert str(error).startswith("tls: failed to verify server certificate: ")
            await bench.retry()
            await bench.until(lambda: bench.reconnect.failure_count > 1)

    async def test_broker_without_tls_is_disconnected(self):
        nsqd = Nsqd(BrokerOptions(tcp_address="127.0.0.1:0", http_address=""))
        async with self.reaching(None, nsqd, tls_v1=True, tls_insecure_skip_verify=True) as bench:
            error = await bench.wait_error(NegotiationFailed)
            assert str(error) == "tls_v1 is set, and the broker does not offer TLS"
