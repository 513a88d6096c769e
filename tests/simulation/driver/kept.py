"""What a disk has to have: the messages that were acknowledged with ``fsync``, and the names of topics and channels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.simulation.broken import Broken
from tests.simulation.driver.operations import entry_of

if TYPE_CHECKING:
    from tests.simulation.driver.history import Publish
    from tests.simulation.driver.node import Broker
    from tests.simulation.driver.world import World

NAMES = "nsqd.dat"


def check_acknowledged(world: World, publish: Publish) -> None:
    """Check that a power cut at this moment would leave the messages of a publish that a broker has acknowledged.

    Raises:
        Broken: it would not.
    """
    nodes = [world.nodes[node] for node in publish.nodes]
    if any(node.durability != "fsync" for node in nodes):
        return
    missing = [_missing(world, publish, node) for node in nodes]
    if all(missing):
        raise Broken(15, f"{publish.names} is acknowledged and not on a disk: {missing}")


def _missing(world: World, publish: Publish, node: Broker) -> str:
    """Return what a disk does not have of a publish; empty if it has all that is not done."""
    assert node.disk is not None
    files = node.disk.synced
    history, topic = world.history, publish.topic
    confirms = any(options.get("confirms") for options in world.plan.players.values())  # they record it later
    in_slots = {options["topic"] for options in world.plan.players.values() if options.get("way") == "slots"}
    has_names = False
    for channel in history.channels[topic]:
        if history.is_removed(publish, channel):
            return ""
        for name in publish.names:
            delivery = history.deliveries.get((topic, channel, name))
            # A partition records what it has finished, and has in slots, when it reads them.
            if topic in in_slots or (delivery is not None and (delivery.done or confirms)):
                continue
            has_names = True
            queues = f"{topic}.diskqueue.", f"{topic}:{channel}."
            if not any(f"{name}.".encode() in data for file, data in files.items() if file.startswith(queues)):
                return f"{name} for {channel} in {node.name}"
    if not has_names:
        return ""
    document = json.loads(files.get(NAMES, b'{"topics": null}'))
    wanted = ["", *([] if topic in world.late_topics else history.channels[topic])]
    return ", ".join(f"the name of {topic}:{each}" for each in wanted if entry_of(document, topic, each) is None)


def unnamed(node: Broker) -> list[str]:
    """Return a line for a topic or channel of a broker that nsqd.dat has not, or has otherwise."""
    if node.disk is None or node.nsqd is None:
        return []
    wanted = {
        topic.name.decode(): (topic.paused, {each.name.decode(): each.paused for each in topic.channels.values()})
        for topic in node.nsqd.broker.topics.values()
    }
    document = json.loads(node.disk.files[NAMES])
    found = {
        topic["name"]: (topic["paused"], {each["name"]: each["paused"] for each in topic["channels"] or ()})
        for topic in document["topics"] or ()
    }
    for name, (paused, channels) in wanted.items():
        lasting = {channel: each for channel, each in channels.items() if not channel.endswith("#ephemeral")}
        wanted[name] = paused, lasting
    return [] if found == wanted else [f"nsqd.dat of {node.name} has {found}, not {wanted}"]
