"""The whole broker, without sockets: topics, sessions, and what follows from a command.

The rule it guards: time and chance come in from outside. The same calls with the same times and the same ``random``
give the same bytes, so a world of brokers and clients can be replayed from a number.

How it is driven: ``open_session`` for each connection, then the session's verbs; after each call,
``take_sessions`` names those that have something to send. ``next_deadline`` says when to call ``handle_deadline``.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import attrs

from nsqkit.broker.core.disk.group_commit import GroupCommit
from nsqkit.broker.core.disk.storage import DurableStorage, MemoryStorage
from nsqkit.broker.core.session.command_log import LOGGED_ACTIONS
from nsqkit.broker.core.session.session import ACTIONS, Session
from nsqkit.broker.core.timers import Agenda
from nsqkit.broker.core.topics.queue_scan import QueueScan, ScannedAgenda
from nsqkit.broker.core.topics.topic import Topic
from nsqkit.wire.compression import snappy_available
from nsqkit.wire.identify import Grant, IdentifyLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from random import Random

    from nsqkit.broker.core.disk.storage import Storage
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.broker.core.timers import Timed
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.wire.transform import SecureTransform

logger = logging.getLogger("nsqkit.broker")

Map: TypeAlias = "Callable[[Callable[[Topic], list[OSError]], Iterable[Topic]], Iterable[list[OSError]]]"

HEARTBEAT_INTERVAL_NS = 30 * 10**9
"""What a client gets that does not ask; nsqd has no flag for it."""

FAULT_PAUSE_NS = 10**9
"""Time until something that has failed by an error of our own is tried again."""


class Broker:
    """The engine of nsqd.

    Args:
        options: nsqd's flags.
        random: decides which messages a sampling consumer gets.
        storage: where queues keep what memory does not hold; by default in memory all the same.

    Attributes:
        topics: by name.
        sessions: the open connections, in the order in which they were opened.
        make_tls: makes the TLS layer of a session; None where TLS is not offered.
        group_commit: decides when publishers are answered; None to answer at once.
        actions: what sessions do for each command; see ``log_commands``.
        asks_for_channels: a new topic waits until ``Topic.start`` is called with the channels that others know of it.
    """

    def __init__(self, options: BrokerOptions, random: Random, storage: Storage | None = None) -> None:
        self.options = options
        self.random = random
        self.storage = MemoryStorage(options.mem_queue_size, options.node_id) if storage is None else storage
        self.make_tls: Callable[[], SecureTransform] | None = None
        self.group_commit: GroupCommit[Session] | None = (
            GroupCommit() if isinstance(self.storage, DurableStorage) else None
        )
        self.asks_for_channels = False
        self.actions = ACTIONS
        self._new_topics: list[Topic] = []
        scans = options.timing == "nsqd"
        self.agenda = ScannedAgenda() if scans else Agenda()
        self._scan = QueueScan(self._channels, options.queue_scan_selection_count, random) if scans else None
        self.topics: dict[bytes, Topic] = {}
        self.sessions: dict[Session, None] = {}
        self.identify_limits = _identify_limits(options)
        self.default_grant = Grant(
            heartbeat_interval_ns=HEARTBEAT_INTERVAL_NS,
            msg_timeout_ns=options.msg_timeout_ns,
            output_buffer_size=self.identify_limits.output_buffer_size,
            output_buffer_timeout_ns=options.output_buffer_timeout_ns,
        )

    @property
    def health(self) -> str:
        """What is wrong, or "OK"."""
        return self.storage.health

    def offer_tls(self, make_tls: Callable[[], SecureTransform]) -> None:
        """Grant TLS to those who ask for it; ``make_tls`` makes the layer of one session."""
        self.make_tls = make_tls
        self.identify_limits = attrs.evolve(self.identify_limits, tls=True)

    def log_commands(self, wanted: bool) -> None:
        """Log each command of each client, or none; a buffer of commands asks once which."""
        self.actions = LOGGED_ACTIONS if wanted else ACTIONS

    # ---- sessions ----------------------------------------------------------------------------------------------

    def open_session(self, remote_address: str, now_ns: int) -> Session:
        """Return the session of a new connection."""
        session = Session(self, remote_address, now_ns)
        self.sessions[session] = None
        return session

    def close_session(self, session: Session, now_ns: int) -> None:
        """Take note that the connection is gone; its in-flight messages wait for their timeouts."""
        session.end(None)
        if session not in self.sessions:
            return
        del self.sessions[session]
        self.agenda.forget(session)
        session.discard()
        if self.group_commit is not None:
            self.group_commit.forget(session)
        channel = session.channel
        if channel is not None:
            channel.remove(session, requeue=self.options.requeue_on_disconnect)
            topic = self.topics.get(session.topic_name)
            if (
                channel.ephemeral
                and not channel.sessions
                and topic
                and topic.channels.get(channel.name) is channel
            ):
                self.delete_channel(session.topic_name, channel.name)
        self.settle(now_ns)

    def end_commit(self, ticket: int) -> None:
        """Answer the publishers that waited for this commit of ``group_commit``."""
        assert self.group_commit is not None
        for session in self.group_commit.end(ticket):
            session.release(ticket)

    def fail_commit(self, reason: str) -> None:
        """End the connections of all publishers that wait for a commit."""
        assert self.group_commit is not None
        for session in self.group_commit.fail():
            session.end(f"commit failed: {reason}")

    def take_sessions(self) -> dict[Session, None]:
        """Return the sessions that have something to send or have ended, since the last call."""
        return self.agenda.take_sessions()

    # ---- time --------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when to call ``handle_deadline`` if nothing else happens."""
        return self.agenda.next_deadline()

    def handle_deadline(self, now_ns: int) -> None:
        """Do what is due: heartbeats, message timeouts, deferred messages."""
        for owner, error in self.agenda.handle_deadline(now_ns):
            self._go_on_after(error, owner, now_ns)
        self.settle(now_ns)

    def settle(self, now_ns: int) -> None:
        """Deliver once from every channel to which something has happened."""
        while channels := self.agenda.take_channels():
            for channel in channels:
                try:
                    channel.deliver(now_ns)
                except Exception as error:
                    self._go_on_after(error, channel, now_ns)
        sync_ns = self.storage.sync_deadline(now_ns)
        if sync_ns is not None:
            self.agenda.schedule(self.storage, sync_ns)
        if self.storage.has_news:
            self.storage.has_news = False
            self.agenda.has_news = True
        if self._scan is not None and self._scan.due_ns is None:
            self.agenda.schedule(self._scan, self._scan.start(now_ns))

    def _go_on_after(self, error: Exception, owner: Timed, now_ns: int) -> None:
        """Go on after an error of our own: the connection ends in which it came up, all else is tried again later."""
        logger.error("internal error", exc_info=error)
        if isinstance(owner, Session):
            owner.end("internal error")
        else:
            self.agenda.schedule(owner, now_ns + FAULT_PAUSE_NS)

    def _channels(self) -> Iterator[Channel]:
        return (channel for topic in self.topics.values() for channel in topic.channels.values())

    # ---- topics and channels -------------------------------------------------------------------------------------

    def topic(self, name: bytes) -> Topic:
        """Return the topic, made if it is new."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(
                name,
                self.agenda,
                self.storage,
                self.options,
                started=not self.asks_for_channels,
            )
            self.agenda.note_names()
            if self.asks_for_channels:
                self._new_topics.append(topic)
        return topic

    def sample(self, frames: list[bytes], rate: int) -> tuple[list[bytes], list[bytes]]:
        """Return those of the messages that a consumer with a sample rate gets, and the others.

        One more in a hundred than the rate says, as in nsqd (nsqd/protocol_v2.go).
        """
        taken: list[bytes] = []
        dropped: list[bytes] = []
        for frame in frames:
            (taken if self.random.randrange(100) <= rate else dropped).append(frame)
        return taken, dropped

    def take_new_topics(self) -> list[Topic]:
        """Return the topics that wait to be started, since the last call."""
        topics = self._new_topics
        if topics:
            self._new_topics = []
        return topics

    def delete_topic(self, name: bytes) -> None:
        """Forget the topic, its channels and their messages, and end the sessions of their consumers.

        Raises:
            KeyError: there is none.
        """
        topic = self.topics.pop(name)
        self.agenda.note_names()
        for channel_name in list(topic.channels):
            self._delete_channel(topic, channel_name)
        topic.delete()

    def delete_channel(self, topic_name: bytes, name: bytes) -> None:
        """Forget the channel and its messages, and end its consumers' sessions.

        An ephemeral topic goes with its last channel.

        Raises:
            KeyError: there is no such topic or channel.
        """
        topic = self.topics[topic_name]
        self._delete_channel(topic, name)
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic_name)

    def _delete_channel(self, topic: Topic, name: bytes) -> None:
        channel = topic.remove_channel(name)
        for session in list(channel.sessions):
            session.end(f"channel {name.decode()} of topic {topic.name.decode()} was deleted")
        channel.delete()

    def close(self, each: Map = map) -> list[OSError]:
        """Have the storage keep all messages for the next start; return what went wrong.

        Args:
            each: calls a function for each topic; it may do so in threads, since topics share no files.
        """
        return list(chain.from_iterable(each(Topic.close, self.topics.values())))


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
