"""An operator of one broker, who uses the routes of HTTP, and checks what each answer promises."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from nsqkit.admin.nsqd import NsqdAdmin
from nsqkit.errors import RequestFailed, RequestRefused
from tests.simulation.broken import conclude
from tests.simulation.driver.history import OK, REFUSED, Removal
from tests.simulation.driver.network import HOST

if TYPE_CHECKING:
    from nsqkit.admin.stats import TopicStats
    from tests.simulation.driver.node import Broker
    from tests.simulation.driver.world import World
    from tests.simulation.plan import Step

REMOVALS: Final = frozenset(("empty channel", "empty topic", "delete channel", "delete topic"))
OPERATIONS: Final = REMOVALS | {"pause channel", "unpause channel", "pause topic", "unpause topic", "stats"}


class Operator:
    """The operator of one broker."""

    def __init__(self, world: World, broker: Broker) -> None:
        self._world = world
        self._broker = broker
        self._admin = NsqdAdmin(broker.http_address)
        self._count = 0  # of the operations that have begun
        self._running = 0

    async def operate(self, step: Step) -> None:
        """Do one step of the plan."""
        HOST.set("operator")
        verb, topic, channel = step.verb, step.values.get("topic", ""), step.values.get("channel", "")
        self._count += 1
        self._running += 1
        try:
            if verb == "stats":
                await self._admin.stats()
            elif verb in REMOVALS:
                await self._remove(verb, topic, channel)
            else:
                await self._pause(verb, topic, channel)
        except RequestFailed as error:
            self._world.note("%s refuses: %s", self._broker.name, error)
            may_be_gone = self._world.history.removals or topic in self._world.late_topics
            is_there = bool(may_be_gone) or not isinstance(error, RequestRefused) or error.status >= 500
            conclude(14, is_there, f"{verb} {topic} {channel} of {self._broker.name}: {error}")
        finally:
            self._running -= 1

    # ---- pauses --------------------------------------------------------------------------------------------------

    async def _pause(self, verb: str, topic: str, channel: str) -> None:
        count, is_alone, nsqd = self._count, self._running == 1, self._broker.nsqd
        action, _, place = verb.partition(" ")
        if place == "topic":
            await (self._admin.pause_topic if action == "pause" else self._admin.unpause_topic)(topic)
        else:
            await (self._admin.pause_channel if action == "pause" else self._admin.unpause_channel)(topic, channel)
        if count != self._count or not is_alone or self._broker.nsqd is not nsqd or self._world.healed.is_set():
            return  # another operation may have changed it since
        wanted = {"name": topic if place == "topic" else channel, "paused": action == "pause"}
        if self._broker.disk is not None and not self._world.has_disk_faults:
            entry = entry_of(json.loads(self._broker.disk.files["nsqd.dat"]), topic, channel * (place == "channel"))
            found = entry and {name: entry[name] for name in wanted}
            conclude(15, found == wanted, f"{verb} was answered while nsqd.dat has {found}, not {wanted}")
        seen = await self._stats(topic)
        is_same = self._broker.nsqd is nsqd and count == self._count
        if seen is not None and is_same and not self._world.healed.is_set():
            entries = [seen] if place == "topic" else [each for each in seen.channels if each.channel_name == channel]
            is_right = [each.paused for each in entries] == [wanted["paused"]]
            conclude(14, is_right, f"/stats has {entries} after {verb} {wanted['name']}")

    async def _stats(self, topic: str) -> TopicStats | None:
        stats = await self._admin.stats(topic)
        return next((each for each in stats.topics if each.topic_name == topic), None)

    # ---- removals ------------------------------------------------------------------------------------------------

    async def _remove(self, verb: str, topic: str, channel: str) -> None:
        """Remove messages; a topic or channel that is deleted is created again at once."""
        world, name, nsqd = self._world, self._broker.name, self._broker.nsqd
        world.history.trouble([name], world.loop.time())
        channels = tuple(world.history.channels[topic])
        removal = Removal(name, topic, (channel,) if verb.endswith("channel") else channels)
        world.history.removals.append(removal)
        before = self._publish_count(topic)
        try:
            match verb:
                case "empty channel":
                    await self._admin.empty_channel(topic, channel)
                case "empty topic":
                    await self._admin.empty_topic(topic)
                case "delete channel":
                    await self._admin.delete_channel(topic, channel)
                case _:
                    await self._admin.delete_topic(topic)
            world.history.trouble([name], world.loop.time())  # until now
            if verb.startswith("delete"):
                await self._admin.create_topic(topic)
                for each in channels:
                    await self._admin.create_channel(topic, each)
            seen, count = await self._stats(topic), self._publish_count(topic)
            if count is not None and count == before and self._broker.nsqd is nsqd:  # a power cut may undo the removal
                self._check_removed(verb, topic, channel, seen)
        except RequestRefused as error:  # another removal has been faster, or the disk has failed
            world.note("%s refuses: %s", name, error)
            may_be_gone = len(world.history.removals) > 1 or topic in world.late_topics
            conclude(14, may_be_gone or error.status >= 500, f"{verb} {topic} {channel} of {name}: {error}")
            if verb.startswith("delete") or error.status >= 500:
                return
        removal.end = world.loop.time()

    def _check_removed(self, verb: str, topic: str, channel: str, seen: TopicStats | None) -> None:
        """Check that nothing is left, if no message was under way, and none waited in the topic for the channel."""
        if seen is None or not self._world.keeps_topics_empty:
            return
        left = [(seen.depth, 0, 0)] if verb.endswith("topic") else []
        left += [
            (each.depth, each.in_flight_count, each.deferred_count)
            for each in seen.channels
            if verb == "delete topic" or (verb.endswith("channel") and each.channel_name == channel)
        ]
        conclude(14, not any(map(any, left)), f"after {verb} {topic} {channel}: {left} are left")

    def _publish_count(self, topic: str) -> int | None:
        """Return the number of publishes to a topic; None if one of them may not have arrived yet."""
        publishes = [publish for publish in self._world.history.publishes.values() if publish.topic == topic]
        if any(publish.outcome not in {OK, REFUSED} for publish in publishes):
            return None
        return len(publishes)


def entry_of(document: dict[str, Any], topic: str, channel: str = "") -> dict[str, Any] | None:
    """Return the entry of a topic, or of a channel, in the document of nsqd.dat; None if there is none."""
    for found in document["topics"] or ():
        if found["name"] == topic:
            if not channel:
                return dict(found)
            return next((each for each in found["channels"] or () if each["name"] == channel), None)
    return None
