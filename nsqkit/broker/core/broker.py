"""The whole broker, without sockets: topics, sessions, and what follows from a command.

The rule it guards: time and chance come in from outside. The same calls with the same times and the same ``random``
give the same bytes, so a world of brokers and clients can be replayed from a number.

How it is driven: ``open_session`` for each connection, then the session's verbs; after each call,
``take_sessions`` names those that have something to send. ``next_deadline`` says when to call ``handle_deadline``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqkit.broker.core.agenda import Agenda
from nsqkit.broker.core.session import Session
from nsqkit.broker.core.topic import Topic
from nsqkit.wire.identify import Grant, IdentifyLimits

if TYPE_CHECKING:
    from random import Random

    from nsqkit.broker.core.options import BrokerOptions

HEARTBEAT_INTERVAL_NS = 30 * 10**9
"""What a client gets that does not ask; nsqd has no flag for it."""


class Broker:
    """The engine of nsqd.

    Args:
        options: nsqd's flags.
        random: decides which messages a sampling consumer gets.

    Attributes:
        topics: by name.
        sessions: the open connections, in the order in which they were opened.
    """

    def __init__(self, options: BrokerOptions, random: Random) -> None:
        self.options = options
        self.random = random
        self.agenda = Agenda()
        self.topics: dict[bytes, Topic] = {}
        self.sessions: dict[Session, None] = {}
        self.identify_limits = _identify_limits(options)
        self.default_grant = Grant(
            heartbeat_interval_ns=HEARTBEAT_INTERVAL_NS,
            msg_timeout_ns=options.msg_timeout_ns,
            output_buffer_size=self.identify_limits.output_buffer_size,
            output_buffer_timeout_ns=options.output_buffer_timeout_ns,
        )

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
        channel = session.channel
        if channel is not None:
            channel.remove(session)
            topic = self.topics.get(session.topic_name)
            if (
                channel.ephemeral
                and not channel.sessions
                and topic
                and topic.channels.get(channel.name) is channel
            ):
                self.delete_channel(session.topic_name, channel.name)
        self.settle(now_ns)

    def take_sessions(self) -> dict[Session, None]:
        """Return the sessions that have something to send or have ended, since the last call."""
        return self.agenda.take_sessions()

    # ---- time --------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when to call ``handle_deadline`` if nothing else happens."""
        return self.agenda.next_deadline()

    def handle_deadline(self, now_ns: int) -> None:
        """Do what is due: heartbeats, message timeouts, deferred messages."""
        self.agenda.handle_deadline(now_ns)
        self.settle(now_ns)

    def settle(self, now_ns: int) -> None:
        """Deliver once from every channel to which something has happened."""
        while channels := self.agenda.take_channels():
            for channel in channels:
                channel.deliver(now_ns)

    # ---- topics and channels -------------------------------------------------------------------------------------

    def topic(self, name: bytes) -> Topic:
        """Return the topic, made if it is new."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(
                name, self.agenda, node_id=self.options.node_id, mem_queue_size=self.options.mem_queue_size
            )
        return topic

    def delete_topic(self, name: bytes) -> None:
        """Forget the topic, its channels and their messages, and end the sessions of their consumers.

        Raises:
            KeyError: there is none.
        """
        topic = self.topics.pop(name)
        for channel_name in list(topic.channels):
            self._close_channel(topic, channel_name)

    def delete_channel(self, topic_name: bytes, name: bytes) -> None:
        """Forget the channel and its messages, and end its consumers' sessions.

        An ephemeral topic goes with its last channel.

        Raises:
            KeyError: there is no such topic or channel.
        """
        topic = self.topics[topic_name]
        self._close_channel(topic, name)
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic_name)

    def _close_channel(self, topic: Topic, name: bytes) -> None:
        channel = topic.channels.pop(name)
        for session in list(channel.sessions):
            session.end(f"channel {name.decode()} of topic {topic.name.decode()} was deleted")
        channel.empty()


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
        snappy_available=False,
        auth_required=bool(options.auth_http_addresses),
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )
