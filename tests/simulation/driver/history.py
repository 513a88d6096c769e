"""The history of a world as its clients see it: their calls with the results, and all deliveries.

It reads nothing of a broker. A body is ``player.serial.checksum``, so a body that was invented, mixed or cut is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final
from zlib import crc32

import attrs

from tests.simulation.broken import Broken

OK: Final = "ok"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown"
PUT_MAX: Final = 0.1
LATE_MAX: Final = 4.0
"""Seconds from the end of a publish until its messages are put, if they are, and if the network has stalled."""


def make_body(player: str, serial: int, size: int) -> bytes:
    """Return the body of a message, of at least ``size`` bytes."""
    text = f"{player}.{serial}."
    filler = "." * max(size - len(text) - 8, 0)
    return f"{text}{crc32((text + filler).encode()):08x}{filler}".encode()


def name_of(body: bytes) -> str:
    """Return the part of a body that names the message.

    Raises:
        Broken: no client has published it.
    """
    parts = body.split(b".", 3)
    if len(parts) >= 3:
        text, checksum = b"%s.%s." % (parts[0], parts[1]), parts[2][:8]
        filler = parts[2][8:] + (b"." + parts[3] if len(parts) == 4 else b"")
        if checksum == b"%08x" % crc32(text + filler):
            return text[:-1].decode()
    raise Broken(3, f"{body[:60]!r} was delivered")


@attrs.define(eq=False)
class Publish:
    """One call of a publishing method.

    Attributes:
        names: of its messages.
        topic: it publishes to.
        nodes: those that may get it.
        begun: the time of the call.
        due: the time before which nothing is delivered.
        may_repeat: it may be sent more than once.
        attempts: how often it may be sent, if more than once.
        outcome: OK, REFUSED or UNKNOWN; None until the call ends.
        ended: the time of its end.
    """

    names: tuple[str, ...]
    topic: str
    nodes: tuple[str, ...]
    begun: float
    may_repeat: bool
    attempts: int = 1
    due: float = 0.0
    outcome: str | None = None
    ended: float = math.inf


@attrs.define(eq=False)
class Removal:
    """An operation that removes all messages of some channels of a topic at one node.

    Attributes:
        node: the node.
        topic: the topic.
        channels: that have none of the messages any more.
        end: a publish that begins later is not affected; infinite while that is not known.
    """

    node: str
    topic: str
    channels: tuple[str, ...]
    end: float = math.inf


@attrs.define(eq=False)
class Delivery:
    """The deliveries of one message in one channel.

    Attributes:
        ids: the node and the id of each.
        count: deliveries.
        done: a handler has finished it, or it was given up.
        finished: by node and id, the time at which it was finished, if the FIN has certainly arrived in time.
    """

    ids: dict[tuple[str, bytes], int] = attrs.field(factory=dict)
    count: int = 0
    done: bool = False
    finished: dict[tuple[str, bytes], float] = attrs.field(factory=dict)


class History:
    """All publishes and deliveries.

    Args:
        channels: of each topic.

    Attributes:
        time: returns the time.
        readers: return the name of the message in a body, for topics with bodies that name the message of another one.
    """

    time: Callable[[], float]

    def __init__(self, channels: dict[str, list[str]]) -> None:
        self.channels = channels
        self.readers: dict[str, Callable[[bytes], str]] = {}
        self.publishes: dict[str, Publish] = {}
        self.deliveries: dict[tuple[str, str, str], Delivery] = {}
        self.losses: dict[str, list[float]] = {}
        self.troubles: dict[str, list[float]] = {}
        self.crashes: dict[str, list[float]] = {}
        self.kills: dict[str, list[float]] = {}
        self.disk_faults: dict[str, list[float]] = {}
        self.removals: list[Removal] = []
        self.trouble_count = 0

    # ---- publishes -----------------------------------------------------------------------------------------------

    def begin(self, publish: Publish) -> Publish:
        for name in publish.names:
            self.publishes[name] = publish
        return publish

    def end(self, publish: Publish, outcome: str) -> None:
        """Record the end of a call.

        Raises:
            Broken: it has ended before, or a refused message was delivered.
        """
        if publish.outcome is not None:
            raise Broken(11, f"the publish of {publish.names} ended twice: {publish.outcome}, {outcome}")
        publish.outcome = outcome
        publish.ended = self.time()
        if outcome == REFUSED:
            for key in self.deliveries:
                if key[2] in publish.names:
                    raise Broken(2, f"{key[2]} was delivered to {key[1]}")

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def lose(self, node: str, time: float) -> None:
        """Record that a node has lost messages that it had acknowledged, as it may."""
        self.losses.setdefault(node, []).append(time)

    def trouble(self, nodes: Iterable[str], time: float) -> None:
        """Record a fault, with which connections of a node may end."""
        self.trouble_count += 1
        for node in nodes:
            self.troubles.setdefault(node, []).append(time)

    def crash(self, node: str, time: float) -> None:
        """Record a fault after which a broker may have a message twice, the second time with another id."""
        self.crashes.setdefault(node, []).append(time)

    def kill(self, node: str, time: float) -> None:
        """Record a fault after which a broker may have a part of an MPUB."""
        self.kills.setdefault(node, []).append(time)

    def disk_fault(self, node: str, time: float) -> None:
        """Record a fault of a disk, from which on a part of an MPUB may be refused."""
        self.disk_faults.setdefault(node, []).append(time)

    def is_removed(self, publish: Publish, channel: str) -> bool:
        """Return whether an operator may have removed the messages of a publish from a channel."""
        return any(
            each.topic == publish.topic
            and channel in each.channels
            and each.node in publish.nodes
            and publish.begun <= each.end
            for each in self.removals
        )

    # ---- deliveries ----------------------------------------------------------------------------------------------

    def name(self, topic: str, body: bytes) -> str:
        """Return the name of a message.

        Raises:
            Broken: no client has published it.
        """
        return self.readers.get(topic, name_of)(body)

    def deliver(self, topic: str, channel: str, node: str, message_id: bytes, body: bytes, attempts: int) -> str:
        """Record a delivery; return the name of the message.

        Raises:
            Broken: it is not allowed.
        """
        name = self.name(topic, body)
        publish = self.publishes.get(name)
        if publish is None or publish.topic != topic or node not in publish.nodes:
            raise Broken(3, f"{name} was delivered from {topic} of {node}")
        if publish.outcome == REFUSED:
            raise Broken(2, f"{name} was delivered to {channel}")
        if (early := publish.due - self.time()) > 0 and self.is_calm([node], publish.begun):
            raise Broken(16, f"{name} was delivered to {channel} {early:.3f} seconds too early")
        delivery = self.deliveries.setdefault((topic, channel, name), Delivery())
        delivery.count += 1
        key = (node, message_id)
        before = delivery.ids.get(key, 0)
        delivery.ids[key] = max(attempts, before)
        nodes = {node for node, _ in delivery.ids}
        is_twice = len(nodes) > 1 or (len(delivery.ids) > 1 and not self._between(self.crashes, node, publish.begun))
        if is_twice and not publish.may_repeat:
            raise Broken(20, f"{name} was published {len(delivery.ids)} times: {sorted(delivery.ids)}")
        has_crashed = any(self._between(self.crashes, node, publish.begun) for node in publish.nodes)
        if len(delivery.ids) > publish.attempts > 1 and not has_crashed:
            raise Broken(20, f"{name} was published in {publish.attempts} attempts: {sorted(delivery.ids)}")
        if attempts <= before and not (node in self.losses or node in self.troubles):
            raise Broken(8, f"attempt {attempts} of {name} follows attempt {before}")
        # A broker that was killed may have a message twice, as a requeue writes it once more.
        if key in delivery.finished and not self._between(self.troubles, node, publish.begun):
            raise Broken(18, f"{name} was delivered to {channel} after it was finished at {delivery.finished[key]:.3f}")
        return name

    def is_calm(self, nodes: Iterable[str], since: float) -> bool:
        """Return whether none of the nodes had a fault since a time."""
        return not any(self._between(self.troubles, node, since) for node in nodes)

    @staticmethod
    def _between(times: dict[str, list[float]], node: str, since: float) -> bool:
        return any(time >= since for time in times.get(node, ()))

    def done(self, topic: str, channel: str, name: str) -> None:
        """Record that a handler is done with a message, or that it was given up, perhaps without a handler."""
        self.deliveries.setdefault((topic, channel, name), Delivery()).done = True

    def finish(self, topic: str, channel: str, name: str, key: tuple[str, bytes], time: float) -> None:
        """Record that a message was finished in time, on a connection without trouble."""
        self.deliveries[topic, channel, name].finished[key] = time

    # ---- the end -------------------------------------------------------------------------------------------------

    def check(self, *, may_be_late: bool) -> None:
        """Check the whole, once all queues are empty.

        Args:
            may_be_late: the network has stalled.

        Raises:
            Broken: a publish has no answer, an acknowledged message was not handled, or a part of an MPUB is missing.
        """
        for publish in dict.fromkeys(self.publishes.values()):
            self._check_whole(publish, may_be_late=may_be_late)
        for name, publish in self.publishes.items():
            if publish.outcome is None:
                raise Broken(11, f"the publish of {name} has not ended")
            if publish.outcome != OK or any(self._between(self.losses, node, publish.begun) for node in publish.nodes):
                continue
            for channel in self.channels[publish.topic]:
                delivery = self.deliveries.get((publish.topic, channel, name))
                if (delivery is None or not delivery.done) and not self.is_removed(publish, channel):
                    what = "delivered" if delivery is None else "handled"
                    raise Broken(1, f"{name} was acknowledged, and not {what} in {channel} of {publish.topic}")

    def _check_whole(self, publish: Publish, *, may_be_late: bool) -> None:
        end = publish.ended + (LATE_MAX if may_be_late else PUT_MAX)
        for node in publish.nodes:
            was_killed = any(publish.begun <= time <= end for time in self.kills.get(node, ()))
            may_fail = any(time <= end for time in self.disk_faults.get(node, ()))
            if was_killed or may_fail or self._between(self.losses, node, publish.begun):
                return
        for channel in self.channels[publish.topic]:
            count = sum((publish.topic, channel, name) in self.deliveries for name in publish.names)
            if 0 < count < len(publish.names) and not self.is_removed(publish, channel):
                raise Broken(3, f"{count} of {publish.names}, which are one publish, were delivered in {channel}")
