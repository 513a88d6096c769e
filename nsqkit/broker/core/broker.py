"""The whole broker, without sockets: its topics, its sessions, and their deadlines.

Time and chance come in as arguments: the same calls with the same times and the same ``random`` give the same bytes, so
a world of brokers and clients can be replayed from a seed.

Its driver calls ``open_session`` for each connection and then the session's methods. After each call into a session,
``settle`` delivers messages, and ``take_sessions`` returns the sessions that have output or events. ``next_deadline``
is the time of the next ``handle_deadline``.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from nsqkit.broker.core.disk.group_commit import GroupCommit
from nsqkit.broker.core.disk.storage import DiskStorage, DurableStorage, MemoryStorage
from nsqkit.broker.core.session.session import ACTIONS, LOGGED_ACTIONS, Session
from nsqkit.broker.core.session.sessions import Sessions
from nsqkit.broker.core.timers import Timers
from nsqkit.broker.core.topics.queue_scan import QueueScan, ScannedTimers
from nsqkit.broker.core.topics.registry import Topics
from nsqkit.broker.core.topics.topic import Topic
from nsqkit.wire.compression import snappy_available
from nsqkit.wire.identify import Grant, IdentifyLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from nsqkit.broker.core.disk.storage import Storage
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.broker.core.timers import Timed
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.wire.transform import SecureTransform

logger = logging.getLogger("nsqkit.broker")

Map: TypeAlias = "Callable[[Callable[[Topic], list[OSError]], Iterable[Topic]], Iterable[list[OSError]]]"

HEARTBEAT_INTERVAL_NS: Final = 30 * 10**9
"""For a client that requests none; nsqd has no flag for it."""

FAULT_PAUSE_NS: Final = 10**9
"""Time until another attempt after an internal error."""


class Broker:
    """The engine of nsqd.

    Args:
        options: nsqd's flags.
        random: decides which messages a sampling consumer gets, and which channels nsqd's timing scans.
        storage: the queues behind memory; by default in memory, too.

    Attributes:
        topics: by name.
        sessions: the open ones, in the order in which they were opened.
        timers: the deadlines.
        changes: the changes in the topics.
        group_commit: the sessions that wait for a commit; None to answer publishers at once.
        has_news: deadlines, topics, wanted commits or the storage have changed; set by ``settle``, to be set to False
            by the driver, which then acts on it.
    """

    def __init__(self, options: BrokerOptions, random: Random, storage: Storage | None = None) -> None:
        self.options = options
        self.random = random
        self.storage = MemoryStorage(options.mem_queue_size, options.node_id) if storage is None else storage
        self.group_commit: GroupCommit[Session] | None = (
            GroupCommit() if isinstance(self.storage, DurableStorage) else None
        )
        self._disk_storage = self.storage if isinstance(self.storage, DiskStorage) else None
        self.has_news = False
        scans = options.timing == "nsqd"
        self.timers = ScannedTimers() if scans else Timers()
        self.topics = Topics(options, self.storage, self.timers)
        self.changes = self.topics.changes
        self._scan = QueueScan(self.topics, random) if scans else None
        limits = _identify_limits(options)
        grant = Grant(
            heartbeat_interval_ns=HEARTBEAT_INTERVAL_NS,
            msg_timeout_ns=options.msg_timeout_ns,
            output_buffer_size=limits.output_buffer_size,
            output_buffer_timeout_ns=options.output_buffer_timeout_ns,
        )
        self.sessions: Sessions[Session] = Sessions(self.topics, limits, grant, self.group_commit, random)
        self.log_commands(False)

    @property
    def health(self) -> str:
        """The state of the disk: "OK", or "NOK - " and the last error."""
        return self.storage.health

    def offer_tls(self, make_tls: Callable[[], SecureTransform]) -> None:
        """Grant TLS to clients that request it; ``make_tls`` makes the layer of one session."""
        self.sessions.make_tls = make_tls
        self.sessions.limits = attrs.evolve(self.sessions.limits, tls=True)

    def log_commands(self, wanted: bool) -> None:
        """Write a line in the log for each command, or for none."""
        self.sessions.actions = LOGGED_ACTIONS if wanted else ACTIONS

    # ---- sessions ----------------------------------------------------------------------------------------------

    def open_session(self, remote_address: str, now_ns: int) -> Session:
        """Return the session of a new connection."""
        session = Session(self.sessions, remote_address, now_ns)
        self.sessions[session] = None
        return session

    def close_session(self, session: Session, now_ns: int) -> None:
        """Record that the connection is gone; its messages in flight wait for their timeouts."""
        session.end(None)
        if session not in self.sessions:
            return
        del self.sessions[session]
        self.timers.cancel(session)
        session.discard()
        if self.group_commit is not None:
            self.group_commit.forget(session)
        channel, subscription = session.channel, session.subscription
        if channel is None or subscription is None:
            return
        del self.sessions.by_subscription[subscription]
        channel.remove(subscription, requeue=self.options.requeue_on_disconnect)
        topic = self.topics.get(session.topic_name)
        is_there = topic is not None and topic.channels.get(channel.name) is channel
        if channel.ephemeral and not channel.subscriptions and is_there:
            self.delete_channel(session.topic_name, channel.name)

    def take_sessions(self) -> list[Session]:
        """Return the sessions that have recorded output or events since the last call."""
        to_write = self.sessions.to_write
        sessions = [*to_write]
        to_write.clear()
        return sessions

    # ---- time --------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when to call ``handle_deadline`` or ``settle``, in ns: 0 while channels wait for delivery."""
        return 0 if self.changes.channels else self.timers.next_deadline()

    def handle_deadline(self, now_ns: int) -> None:
        """Send heartbeats, time out messages, and deliver: everything that is due."""
        for owner in self.timers.take_due(now_ns):
            try:
                again_ns = owner.handle_deadline(now_ns)
            except Exception as error:
                self._handle_fault(error, owner, now_ns)
            else:
                if again_ns is not None:
                    self.timers.schedule(owner, again_ns)
        self.settle(now_ns)

    def settle(self, now_ns: int) -> None:
        """Deliver once from every channel that may have messages for a consumer; to be called after each call."""
        pending, sessions = self.changes.channels, self.sessions
        while pending:
            channels = [*pending]
            pending.clear()
            for channel in channels:
                try:
                    delivered = channel.deliver(now_ns)
                except Exception as error:
                    delivered = [*channel.subscriptions]  # some may have got messages
                    self._handle_fault(error, channel, now_ns)
                for subscription in delivered:
                    session = sessions.by_subscription[subscription]
                    sessions.to_write[session] = None
                    if self._scan is not None:
                        session.schedule_flush()
                if self._scan is not None and channel.paused:
                    for subscription in channel.subscriptions:
                        sessions.by_subscription[subscription].flush()
        if self._disk_storage is not None and (sync_ns := self._disk_storage.sync_deadline(now_ns)) is not None:
            self.timers.schedule(self._disk_storage, sync_ns)
        if self._scan is not None and self._scan.due_ns is None:
            self.timers.schedule(self._scan, self._scan.start(now_ns))
        if self.changes.has_news or self.timers.has_news or self.storage.has_news:
            self.changes.has_news = self.timers.has_news = self.storage.has_news = False
            self.has_news = True

    def _handle_fault(self, error: Exception, owner: Timed, now_ns: int) -> None:
        """Continue after an internal error: end the session in which it occurred, or try again later."""
        logger.error("internal error", exc_info=error)
        if isinstance(owner, Session):
            owner.end("internal error")
        else:
            self.timers.schedule(owner, now_ns + FAULT_PAUSE_NS)

    # ---- commits -------------------------------------------------------------------------------------------------

    def end_commit(self, ticket: int) -> None:
        """Send the answers that have waited for this commit: it is on disk."""
        assert self.group_commit is not None
        for session in self.group_commit.end(ticket):
            session.release(ticket)

    def fail_commit(self, reason: str) -> None:
        """End the sessions that wait for a commit: their messages may be on disk or not."""
        assert self.group_commit is not None
        for session in self.group_commit.fail():
            session.end(f"commit failed: {reason}")

    # ---- topics and channels -------------------------------------------------------------------------------------

    def delete_topic(self, name: bytes) -> None:
        """Delete the topic, its channels and their messages, and end the sessions of their consumers.

        Raises:
            KeyError: there is no such topic.
        """
        topic = self.topics[name]
        for channel in topic.channels.values():
            self._end_consumers(topic, channel)
        self.topics.delete(name)

    def delete_channel(self, topic_name: bytes, name: bytes) -> None:
        """Delete the channel and its messages, and end the sessions of its consumers.

        An ephemeral topic is deleted with its last channel.

        Raises:
            KeyError: there is no such topic or channel.
        """
        topic = self.topics[topic_name]
        self._end_consumers(topic, topic.channels[name])
        self.topics.delete_channel(topic_name, name)

    def _end_consumers(self, topic: Topic, channel: Channel) -> None:
        for subscription in channel.subscriptions:
            reason = f"channel {channel.name.decode()} of topic {topic.name.decode()} was deleted"
            self.sessions.by_subscription[subscription].end(reason)

    def close(self, each: Map = map, *, names_are_saved: bool = True) -> list[OSError]:
        """Have the storage keep all messages for the next start; return the errors.

        Args:
            each: calls a function for each topic; it may do so in threads, since topics share no files.
            names_are_saved: all topics and channels are named on disk.
        """
        close = partial(Topic.close, names_are_saved=names_are_saved)
        return list(chain.from_iterable(each(close, self.topics.values())))


def _identify_limits(options: BrokerOptions) -> IdentifyLimits:
    return IdentifyLimits(
        max_rdy_count=options.max_rdy_count,
        msg_timeout_ns=options.msg_timeout_ns,
        max_msg_timeout_ns=options.max_msg_timeout_ns,
        heartbeat_interval_ns=HEARTBEAT_INTERVAL_NS,
        max_heartbeat_interval_ns=options.max_heartbeat_interval_ns,
        output_buffer_size=16 * 1024,
        max_output_buffer_size=options.max_output_buffer_size,
        output_buffer_timeout_ns=options.output_buffer_timeout_ns,
        min_output_buffer_timeout_ns=options.min_output_buffer_timeout_ns,
        max_output_buffer_timeout_ns=options.max_output_buffer_timeout_ns,
        deflate=options.deflate,
        max_deflate_level=options.max_deflate_level,
        snappy=options.snappy,
        snappy_available=snappy_available(),
        tls=False,
        auth_required=bool(options.auth_http_addresses),
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )
