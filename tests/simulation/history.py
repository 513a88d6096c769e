"""What the clients of one broker did and received, over all its lives: which messages it owes after a restart."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nsqkit.errors import BrokerError, FinishFailed, RequeueFailed, TouchFailed
from nsqkit.wire.frames import HEARTBEAT, MessageFrame, Response
from tests.simulation.promises import CHANNELS, Ledger, Publish
from tests.simulation.refusals import Refusals

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.session.session import Session
    from nsqkit.wire.commands import Command
    from tests.broker.core.disk.disks import MemoryFileStore

ANSWERED = (b"IDENTIFY", b"AUTH", b"SUB", b"CLS")
PUBLISHES = (b"PUB", b"MPUB", b"DPUB")


class History:
    """The ledger of one broker.

    Args:
        is_durable: acknowledged messages have to survive everything (``--durability=fsync``).

    Attributes:
        ledger: the messages that it owes.
    """

    def __init__(self, is_durable: bool) -> None:
        self._is_durable = is_durable
        self.ledger = Ledger()
        self._expected: dict[Session, deque[Publish | None]] = {}
        self._bodies: dict[Session, dict[bytes, bytes]] = {}
        self._channels: dict[Session, tuple[bytes, bytes]] = {}
        self._refusals = Refusals()

    def command(self, session: Session, command: Command, broker: Broker) -> Sequence[bytes]:
        """Record a command that the broker receives; return the bodies that it publishes."""
        expected = self._expected.setdefault(session, deque())
        if command.verb in PUBLISHES:
            topic = broker.topics.get(command.params[0])
            count = len(command.bodies) if command.verb == b"PUB" else 1
            for number in range(count):
                bodies = [command.bodies[number]] if command.verb == b"PUB" else list(command.bodies)
                channels = {name for name in topic.channels if name in CHANNELS} if topic else set()
                expected.append(self.ledger.publish(command.params[0], bodies, channels))
            return command.bodies
        if command.verb in ANSWERED:
            expected.append(None)
        if command.verb == b"SUB":
            self._channels[session] = (command.params[0], command.params[1])
        elif command.verb == b"FIN":
            held = self._bodies.get(session, {})
            for message_id in command.params:
                if message_id in held:
                    self.ledger.finish(*self._channels[session], held[message_id])
        return ()

    def frames(
        self,
        session: Session,
        frames: Sequence[Response | BrokerError | MessageFrame],
        disk: MemoryFileStore | None,
    ) -> None:
        """Record what the broker sends to a client."""
        for frame in frames:
            if isinstance(frame, MessageFrame):
                self._bodies.setdefault(session, {})[frame.id] = frame.body
                if session in self._channels:
                    self._refusals.delivered(*self._channels[session], frame.body)
            elif isinstance(frame, Response) and frame.payload == HEARTBEAT:
                continue
            elif not isinstance(frame, (FinishFailed, RequeueFailed, TouchFailed)):
                expected = self._expected.setdefault(session, deque())
                publish = expected.popleft() if expected else None
                if publish is not None and isinstance(frame, Response):
                    self.ledger.acknowledge(publish)
                elif publish is not None and disk is not None:
                    behind = [each for each in expected if each is not None]
                    self._refusals.refuse(publish, behind, disk.files)

    def promise_nothing(self) -> None:
        """Record that messages may be lost from now on: a file was damaged."""
        self._is_durable = False

    def owes(self, session: Session) -> bool:
        """Return whether a publish of this connection has no answer."""
        return any(each is not None for each in self._expected.get(session, ()))

    def closed(self, session: Session) -> None:
        """Record the end of a connection."""
        for by_session in (self._expected, self._bodies, self._channels):
            by_session.pop(session, None)

    def crash(self, cut: Mapping[str, bytes]) -> None:
        """Record the end of a life; after a power cut, with the files that it has left."""
        self._refusals.cut(cut)
        for by_session in (self._expected, self._bodies, self._channels):
            by_session.clear()
        self.ledger.unanswered.clear()
        self.ledger.deleting.clear()
        self.ledger.acknowledged.clear()

    def forget(self, topic: bytes, channel: bytes) -> None:
        self.ledger.forget(topic, channel)

    def empty_topic(self, topic: bytes) -> None:
        self.ledger.forget(topic, *CHANNELS)

    def delete_channel(self, topic: bytes, channel: bytes) -> None:
        self.ledger.delete_channel(topic, channel)

    def delete_topic(self, topic: bytes) -> None:
        self.ledger.delete_topic(topic)

    def check(self, found: Iterable[tuple[bytes, bytes, bytes]]) -> None:
        """Compare with the messages that a new life has found."""
        if self._is_durable:
            self.ledger.check(found)

    @property
    def owed(self) -> list[bytes]:
        """The messages that are owed and not finished."""
        return [body for bodies in self.ledger.owed.values() for body in bodies] if self._is_durable else []
