"""The state that an oracle takes over from a broker that has just started: its queues, and files without a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqkit.broker.core.disk.storage import DiskStorage, DurableStorage
from nsqkit.wire.messages import id_of
from tests.simulation.contents import copy_of

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.options import BrokerOptions
    from tests.simulation.by_hand import Disk
    from tests.simulation.oracle import Oracle


def restore(broker: Broker, oracle: Oracle, all_ids: dict[bytes, dict[bytes, bytes]]) -> None:
    """Copy the topics, channels and messages of a broker.

    Args:
        broker: it has just started.
        oracle: without any topic.
        all_ids: the body of each id of earlier lives, by topic.
    """
    for name, topic in broker.topics.items():
        ids = all_ids.setdefault(name, {})
        waiting = [(copy_of(frame), topic.waiting_delays_ns.get(id_of(frame), 0)) for frame in topic.queue.messages()]
        oracle.restore(name, paused=topic.paused, waiting=waiting, ids=ids)
        for channel_name, channel in topic.channels.items():
            # A message that an interrupted stop wrote twice is deferred once.
            times = dict(channel.deferred_times.by_id)
            copies = [(copy_of(frame), times.pop(id_of(frame), 0)) for frame in channel.queue.messages()]
            copies += [(copy_of(frame), due_ns) for due_ns, frame in channel.deferred.messages()]
            count = channel.message_count
            oracle.restore_channel(name, channel_name, paused=channel.paused, copies=copies, message_count=count)


def find_orphans(disk: Disk, options: BrokerOptions, oracle: Oracle) -> bool:
    """Read the messages in files of topics and channels that have no name on the disk; return whether all are there."""
    storage = (DurableStorage if options.durability == "fsync" else DiskStorage)(disk.kill(), options)
    is_whole = True
    for name in {name.partition(".diskqueue.")[0].encode() for name in disk.names(".diskqueue.")}:
        topic, _, channel = name.partition(b":")
        known = oracle.topics.get(topic)
        if known is None or (channel and channel not in known.channels):
            queue = storage.open_queue(name, ephemeral=False)
            depth, copies = len(queue), oracle.orphans.setdefault((topic, channel), [])
            while queue:
                copies += map(copy_of, queue.take(1000, 1 << 20))
            is_whole = is_whole and len(copies) == depth
    return is_whole
