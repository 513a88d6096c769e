"""Requests to the other servers of a broker: auth servers, nsqlookupds and statsd.

The engine lists what it needs from them; the requests run here, in separate tasks, and the answers go back into the
engine between two commands. Only the client or topic that needs an answer is held up by a slow server, and a server
that is down is a line in the log.
"""

from __future__ import annotations

import logging
import platform
from typing import TYPE_CHECKING

from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.errors import RequestFailed
from nsqkit.transport.address import port_of
from nsqkit.wire.identify import BROKER_VERSION

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from nsqkit.broker.core.session.auth import AuthState
    from nsqkit.broker.core.session.session import Session
    from nsqkit.broker.core.topics.topic import Topic
    from nsqkit.broker.lookup_announcer import LookupAnnouncer
    from nsqkit.broker.running import RunningBroker

logger = logging.getLogger("nsqkit.broker")


class ExternalServices:
    """The tasks that send requests for one broker; those for statsd and nsqlookupds begin at once."""

    def __init__(self, nsqd: RunningBroker, tasks: TaskGroup) -> None:
        self._nsqd = nsqd
        self._tasks = tasks
        self._announcer: LookupAnnouncer | None = None
        self._revision = nsqd.broker.changes.revision
        self._options = nsqd.options
        if nsqd.options.statsd_address:
            from nsqkit.broker.statsd import StatsdReporter

            reporter = StatsdReporter(nsqd.broker, nsqd.options, nsqd.statsd_prefix, nsqd.clock)
            tasks.start_soon(reporter.run)
        if nsqd.options.lookupd_tcp_addresses:
            self._announce()

    def check(self) -> None:
        """Start requests for changes in the engine and the options since the last call; cheap if there are none."""
        nsqd, revision = self._nsqd, self._nsqd.broker.changes.revision
        if revision == self._revision and nsqd.options is self._options:
            return
        self._revision, self._options = revision, nsqd.options
        addresses = nsqd.options.lookupd_tcp_addresses
        if self._announcer is None and addresses:
            self._announce()
        if self._announcer is not None:
            nsqd.broker.topics.waits_for_channels = bool(addresses)
            self._announcer.changed()
        for topic in nsqd.broker.topics.take_new():
            self._tasks.start_soon(self._start_topic, topic)

    def _announce(self) -> None:
        from nsqkit.broker.lookup_announcer import LookupAnnouncer
        from nsqkit.wire.lookup import Node

        nsqd, options = self._nsqd, self._nsqd.options
        node = Node(
            broadcast_address=options.broadcast_address,
            hostname=platform.node(),
            tcp_port=options.broadcast_tcp_port or max(port_of(nsqd.tcp_address), 0),
            http_port=options.broadcast_http_port or max(port_of(nsqd.http_address), 0),
            version=BROKER_VERSION,
            topology_zone=options.topology_zone,
            topology_region=options.topology_region,
        )
        if not node.http_port:
            logger.warning("nsqlookupd refuses a node without HTTP: set --broadcast-http-port or --http-address")
        self._announcer = LookupAnnouncer(
            lambda: nsqd.options, clock=nsqd.clock, registrations=self._registrations, node=node
        )
        nsqd.broker.topics.waits_for_channels = True
        self._tasks.start_soon(self._announcer.run)

    def _registrations(self) -> dict[bytes, list[bytes]]:
        return {name: list(topic.channels) for name, topic in self._nsqd.broker.topics.items()}

    async def _start_topic(self, topic: Topic) -> None:
        """Start a new topic with the channels that the nsqlookupds list for it."""
        names = [] if self._announcer is None else await self._announcer.channels_to_create(topic.name)
        nsqd = self._nsqd
        if nsqd.broker.topics.get(topic.name) is topic:
            for name, error in topic.start(names, nsqd.clock.now_ns()).items():
                key = f"{topic.name.decode()}:{name.decode()}"
                logger.error("channel %s, which an nsqlookupd lists, cannot be opened: %s", key, error_text(error))
            nsqd.process_changes()

    def authorize(self, session: Session, secret: bytes) -> None:
        """Ask the auth servers for a secret, and give the answer to ``session``."""
        self._tasks.start_soon(self._authorize, session, secret)

    async def _authorize(self, session: Session, secret: bytes) -> None:
        from nsqkit.broker.auth import query_auth_servers

        nsqd, tls = self._nsqd, session.tls
        state: AuthState | RequestFailed
        try:
            state = await query_auth_servers(
                nsqd.options,
                secret=secret,
                remote_ip=session.remote_address.rpartition(":")[0].strip("[]"),
                tls=tls is not None,
                common_name="" if tls is None else tls.common_name,
                clock=nsqd.clock,
                random=nsqd.broker.random,
            )
        except RequestFailed as error:
            state = error
            if session.ended:  # otherwise the reason is in the line about the end of the session
                logger.warning("PROTOCOL(V2): [%s] AUTH failed %s", session.remote_address, error)
        session.authorize(state)
        nsqd.process_changes()
