"""A world: brokers, their clients, the links between them, an admin, and one source of chance.

The rule it guards: a seed is a world. There is no event loop, no socket and no clock; the time is a number that moves
when a step says so, and all that is drawn comes from one ``random.Random``. Brokers and clients are the real machines;
only links, handlers and people are played.

How to read it: a ``Node`` is a broker beside its oracle, a ``Link`` a connection to it. ``World.step`` picks who acts,
``World.run_until`` lets time go by, ``World.finish`` ends all misfortune and waits until every message is finished.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session import Session
from nsqkit.client.session import ClientSession
from nsqkit.consumer.options import ConsumerOptions
from nsqkit.wire.commands import CommandDecoder
from nsqkit.wire.frames import FrameDecoder, MessageFrame
from nsqkit.wire.identify import IdentifyRequest
from tests.simulation.checkers import check, check_bodies
from tests.simulation.network import MS, Pipe
from tests.simulation.oracle import Oracle
from tests.simulation.workload import Consumer, Producer

START_NS = 1_704_067_200 * 1000 * MS
ROUNDS_MAX = 400  # of a second each, until every message has to be finished
EVENTS_MAX = 10_000  # without time going by
ADMIN_ACTIONS = (
    *("pause channel", "unpause channel", "pause topic", "unpause topic", "make channel") * 3,
    *("empty channel", "empty topic", "delete channel", "delete topic"),
)


class Node:
    """A broker, and what it has to be like."""

    def __init__(self, world: World, options: BrokerOptions) -> None:
        self._world = world
        self.broker = Broker(options, world.random)
        self.oracle = Oracle(options)
        self.links: dict[Session, Link] = {}

    def settle(self) -> None:
        """Send what the broker has to say, and close what it has ended."""
        broker, now_ns = self.broker, self._world.now_ns
        broker.settle(now_ns)
        while sessions := broker.take_sessions():
            for session in sessions.keys() & self.links.keys() if False else [s for s in sessions if s in self.links]:
                self._send(session, self.links[session])

    def handle_deadline(self) -> None:
        self.broker.handle_deadline(self._world.now_ns)
        self.oracle.deadline(self._world.now_ns)
        self.settle()
