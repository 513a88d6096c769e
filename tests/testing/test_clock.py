from __future__ import annotations

import socket
import threading
import time

import anyio
import pytest

from nsqkit.clock import NS_PER_S, move_on_after
from nsqkit.consumer import Consumer
from nsqkit.errors import OptionError
from nsqkit.producer import Producer
from nsqkit.testing.clock import ControlledClock, Mode
from nsqkit.testing.servers import NsqdServer
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import MAGIC_V2, encode_publish

MODES: tuple[Mode, ...] = ("running", "manual", "auto", "real")


class TestTime:
    def test_unknown_mode_is_refused(self) -> None:
        with pytest.raises(OptionError, match="mode is 'fast'; allowed are"):
            ControlledClock("fast")  # type: ignore[arg-type]

    @pytest.mark.parametrize("mode", MODES)
    def test_clock_starts_at_start_ns(self, mode: Mode) -> None:
        clock = ControlledClock(mode, start_ns=7 * NS_PER_S)
        assert clock.mode == mode
        assert 7 <= clock.time < 8

    @pytest.mark.parametrize("mode", ["running", "real"])
    def test_running_clock_shows_the_present_time(self, mode: Mode) -> None:
        clock = ControlledClock(mode)
        assert abs(clock.time - time.time()) < 1
        now_ns = clock.now_ns()
        while clock.now_ns() == now_ns:
            pass
        assert clock.now_ns() > now_ns

    @pytest.mark.parametrize("mode", ["manual", "auto"])
    def test_standing_clock_starts_at_a_fixed_time(self, mode: Mode) -> None:
        assert time.gmtime(ControlledClock(mode).time)[:6] == (2024, 1, 1, 0, 0, 0)


class TestAdvance:
    def test_manual_clock_moves_by_advance_alone(self) -> None:
        clock = ControlledClock("manual", start_ns=0)
        clock.advance(1.5)
        clock.advance(0)
        clock.advance(1e-9)
        assert clock.now_ns() == 1_500_000_001

    def test_running_clock_adds_the_seconds(self) -> None:
        clock = ControlledClock()
        clock.advance(3600)
        assert 3600 <= clock.time - time.time() + 0.1 < 3660

    @pytest.mark.parametrize("seconds", [-0.1, 1e10, float("nan")])
    def test_wrong_seconds_are_refused(self, seconds: float) -> None:
        clock = ControlledClock("manual", start_ns=5)
        with pytest.raises(OptionError, match=f"seconds is {seconds}; allowed is 0 to 1e.09 seconds"):
            clock.advance(seconds)
        assert clock.now_ns() == 5

    def test_real_clock_cannot_be_moved(self) -> None:
        clock = ControlledClock("real")
        with pytest.raises(RuntimeError, match='mode "real"'):
            clock.advance(1)
        with pytest.raises(RuntimeError, match='mode "real"'):
            clock.advance_to_next()

    def test_without_a_deadline_there_is_no_next(self) -> None:
        with pytest.raises(RuntimeError, match="nothing waits for the clock"):
            ControlledClock().advance_to_next()

    @pytest.mark.anyio
    async def test_waits_end_at_their_deadlines_in_order(self) -> None:
        clock = ControlledClock("manual", start_ns=0)
        log: list[tuple[int, float]] = []

        async def wait(second: int) -> None:
            await clock.wait_until(second * NS_PER_S)
            log.append((second, clock.time))

        async with anyio.create_task_group() as tasks:
            for second in (30, 1, 3600, 2, 0):
                tasks.start_soon(wait, second)
            await anyio.wait_all_tasks_blocked()
            await clock.advance_to_next()
            assert log == [(0, 0), (1, 1)]
            await clock.advance(3600)
        assert log == [(0, 0), (1, 1), (2, 2), (30, 30), (3600, 3600)]

    @pytest.mark.anyio
    async def test_periodic_task_runs_in_each_period(self) -> None:
        clock = ControlledClock("manual", start_ns=0)
        seconds: list[float] = []

        async def repeat() -> None:
            while True:
                await clock.wait_until(clock.now_ns() + 60 * NS_PER_S)
                seconds.append(clock.time)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(repeat)
            await anyio.wait_all_tasks_blocked()
            await clock.advance(3600)
            tasks.cancel_scope.cancel()
        assert seconds == [60 * count for count in range(1, 61)]

    @pytest.mark.anyio
    async def test_block_is_cancelled_at_its_limit(self) -> None:
        clock = ControlledClock("manual")

        async def advance() -> None:
            await clock.advance(5)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(advance)
            with move_on_after(clock, 5) as scope:
                await anyio.sleep_forever()
        assert scope.cancelled_caught


def test_sixty_second_timeout_of_a_message_takes_milliseconds() -> None:
    with NsqdServer(clock="manual") as nsqd:
        with socket.create_connection(split_address(nsqd.tcp_address), timeout=60) as client:
            client.sendall(MAGIC_V2 + encode_publish(b"t", b"x") + b"SUB t c\nRDY 1\n")
            received = b""
            while b"x" not in received[-1:]:
                received += client.recv(1000)
            begun = time.monotonic()
            nsqd.clock.advance(59)
            assert nsqd.topic("t").channel("c").timeout_count == 0
            nsqd.clock.advance(1)
            assert nsqd.topic("t").channel("c").timeout_count == 1
            assert time.monotonic() - begun < 5


@pytest.mark.anyio
async def test_clients_of_the_test_stay_connected_for_an_hour() -> None:
    with NsqdServer(clock="manual") as nsqd:
        async with (
            Producer(nsqd.tcp_address, clock=nsqd.clock) as producer,
            Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], clock=nsqd.clock) as consumer,
        ):
            await producer.publish("t", b"x")
            message = await anext(aiter(consumer))
            message.finish()
            await nsqd.clock.advance(3600)
            await producer.publish("t", b"y")
            message = await anext(aiter(consumer))
            assert (message.body, message.attempts) == (b"y", 1)
            message.finish()
            assert len(nsqd.connections) == 2


def test_server_with_a_standing_clock_stops_while_a_client_does_not_read() -> None:
    with NsqdServer(clock="manual", max_rdy_count=100) as nsqd:
        client = socket.create_connection(split_address(nsqd.tcp_address), timeout=60)
        client.sendall(MAGIC_V2 + b"".join(encode_publish(b"t", b"x" * 500_000) for _ in range(40)))
        client.sendall(b"SUB t c\nRDY 100\n")
        while nsqd.topic("t").channel("c").in_flight == 0:
            pass
    client.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nsqkit")]
