"""Sends a report on the broker to a statsd daemon every interval.

Nothing waits for statsd, and a failure ends only that report. The address is resolved for each report. The packets
of a report are spread over the interval except for its last second, as in nsqd (internal/writers), so that the daemon's
buffers do not overflow; at the stop of the broker the rest is sent at once.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections import deque
from typing import Any

import anyio

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.report.stats import collect
from nsqkit.broker.core.report.statsd import NOTHING, cut_packets, report
from nsqkit.broker.memory_stats import read_memory_stats
from nsqkit.clock import NS_PER_S, Clock, move_on_after
from nsqkit.transport.address import split_address

logger = logging.getLogger("nsqkit.broker")

RESOLVE_TIMEOUT = 1
"""Seconds for resolving the address; as in nsqd."""


class StatsdReporter:
    """Reports to statsd: the state of a broker, under keys that begin with ``prefix``."""

    def __init__(self, broker: Broker, options: BrokerOptions, prefix: str, clock: Clock) -> None:
        self._broker = broker
        self._options = options
        self._prefix = prefix
        self._clock = clock
        self._last = NOTHING

    async def run(self) -> None:
        """Report every interval, until cancelled."""
        interval_ns = self._options.statsd_interval_ns
        due_ns = self._clock.now_ns()
        try:
            while True:
                # After a late report, those that were due meanwhile are left out.
                due_ns += max(1, -((due_ns - self._clock.now_ns()) // interval_ns)) * interval_ns
                await self._wait_until(due_ns)
                await self._report(due_ns + max(interval_ns - NS_PER_S, 0))
        finally:
            logger.info("STATSD: closing")

    async def _report(self, end_ns: int) -> None:
        address = self._options.statsd_address
        try:
            sock = await _connected(address, self._clock)
        except (OSError, ValueError) as error:
            logger.error("failed to create UDP socket to statsd(%s) - %s", address, error)
            return
        with sock:
            logger.info("STATSD: pushing stats to %s", address)
            await self._spread(sock, self._packets(), end_ns)

    def _packets(self) -> list[bytes]:
        """Return the packets of a report on the changes since the last one."""
        options = self._options
        now = collect(self._broker, self._clock.now_ns(), include_clients=False)
        now["memory"] = read_memory_stats() if options.statsd_mem_stats else None
        lines = report(now, self._last, exclude_ephemeral=options.statsd_exclude_ephemeral)
        self._last = now
        return cut_packets([self._prefix + line for line in lines], options.statsd_udp_packet_size)

    async def _spread(self, sock: socket.socket, packets: list[bytes], end_ns: int) -> None:
        """Send packets in even steps until ``end_ns``."""
        start_ns = self._clock.now_ns()
        left = deque(packets)
        try:
            while left:
                _send(sock, left.popleft())
                sent = len(packets) - len(left)
                await self._wait_until(start_ns + (end_ns - start_ns) * sent // len(packets))
        finally:
            for packet in left:
                _send(sock, packet)

    async def _wait_until(self, time_ns: int) -> None:
        while self._clock.now_ns() < time_ns:
            await self._clock.wait_until(time_ns)


async def _connected(address: str, clock: Clock) -> socket.socket:
    """Return a UDP socket that is connected to the first reachable address of the host.

    Raises:
        ValueError: the address is invalid, or its host has no form for DNS.
        OSError: it is not resolved in time, or not reachable.
    """
    host, port = split_address(address)
    with move_on_after(clock, RESOLVE_TIMEOUT):
        return _first_connected(await anyio.getaddrinfo(host or "localhost", port, type=socket.SOCK_DGRAM))
    raise TimeoutError(errno.ETIMEDOUT, f"no address of {host} is found within {RESOLVE_TIMEOUT} s")


def _first_connected(found: list[tuple[Any, ...]]) -> socket.socket:
    """Return a socket that is connected to the first reachable of one or more addresses."""
    errors: list[OSError] = []
    for family, kind, protocol, _, address in found:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # a family that this machine does not have
            errors.append(error)
            continue
        try:
            sock.setblocking(False)
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            errors.append(error)
    raise errors[-1]


def _send(sock: socket.socket, packet: bytes) -> None:
    try:
        sock.send(packet)
    except OSError as error:  # no listener, or full buffers; the next packet may arrive
        logger.debug("STATSD: a packet is lost - %s", error)
