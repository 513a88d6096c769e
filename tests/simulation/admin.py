"""The actions of others on topics and channels of a node, with their effect on its oracle and history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.data_path import check_deleted, check_emptied
from tests.simulation.oracle import Oracle

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.topics.topic import Topic
    from tests.simulation.node import Node


def administer(node: Node, action: str, topic_name: bytes, name: bytes) -> None:
    """Do as an administrator does; a channel that is not there is made. An OSError is raised when all else is done."""
    broker = node.broker
    if broker is None or node.is_suspended:
        return
    try:
        if action.endswith("channel") and action != "make channel":
            _act(node, broker, "make channel", topic_name, name)
            node.settle_now()
        _act(node, broker, action, topic_name, name)
    except OSError:
        node.settle_now()
        raise
    node.settle_now()


def _act(node: Node, broker: Broker, action: str, topic_name: bytes, name: bytes) -> None:
    if action in {"delete channel", "delete topic"} and node.disk is not None and node.disk.is_failing:
        node.deliveries.may_repeat = True  # files that cannot be removed are there again with the next of that name
    oracle, now_ns = node.oracle or Oracle(node.options), node.now_ns
    topic, topic_oracle = broker.topics.get_or_create(topic_name), oracle.topic(topic_name)
    if action.endswith("channel"):
        channel, channel_oracle = topic.channel(name, now_ns), oracle.channel(topic_name, name, now_ns)
    match action:
        case "pause channel" | "unpause channel":
            (channel.pause if action == "pause channel" else channel.unpause)()
            channel_oracle.paused = channel.paused
        case "empty channel":
            node.history.forget(topic_name, name)
            channel.empty()
            node.check_removed(topic_name + b":" + name, check_emptied)
            oracle.empty_channel(channel_oracle)
        case "delete channel":
            node.history.delete_channel(topic_name, name)
            broker.delete_channel(topic_name, name)
            node.check_removed(topic_name + b":" + name, check_deleted)
            oracle.delete_channel(channel_oracle)
        case "pause topic":
            topic.pause()
            oracle.pause_topic(topic_oracle, now_ns, paused=True)
        case "unpause topic":
            topic.unpause(now_ns)
            oracle.pause_topic(topic_oracle, now_ns, paused=False)
        case "empty topic":
            node.history.empty_topic(topic_name)
            topic.empty()
            node.check_removed(topic_name, check_emptied)
            topic_oracle.waiting, topic_oracle.put_count = [], 0
        case "delete topic":
            node.history.delete_topic(topic_name)
            broker.delete_topic(topic_name)
            node.check_removed(topic_name, check_deleted)
            del oracle.topics[topic_name]
            node.ids.pop(topic_name, None)


def start_topic(node: Node, topic: Topic, names: list[bytes]) -> None:
    """Start a new topic, if it is still there, with the channels that nsqlookupds list."""
    if node.broker is not None and node.broker.topics.get(topic.name) is topic:
        topic.start(names, node.now_ns)
        if node.oracle is not None:
            node.oracle.start_topic(topic.name, names, node.now_ns)
        node.settle_now()
