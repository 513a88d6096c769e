"""The other servers that a broker deals with: auth servers, nsqlookupds and statsd.

The rule it guards: the engine names what is to be asked, here it is asked, and the answer goes back into the engine
between two commands. Nobody but the one who waits for an answer waits; a server that is down is a line in the log.

How to read it: ``start`` begins what the options ask for, ``check`` is called after each call of the engine.
"""

from __future__ import annotations

import logging
import platform
from typing import TYPE_CHECKING

from nsqkit.errors import RequestFailed
from nsqkit.transport.address import port_of
from nsqkit.wire.identify import BROKER_VERSION

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from nsqkit.broker.core.session.auth import AuthState
    from nsqkit.broker.core.session.session import Session
    from nsqkit.broker.core.topics.topic import Topic
    from nsqkit.broker.lookup_announcer import LookupAnnouncer
    from nsqkit.broker.server import Nsqd

logger = logging.getLogger("nsqkit.broker")


class ExternalServices:
    """The others around one broker.

    Args:
        nsqd: the broker.
        tasks: where its tasks run; they end with it.
    """

    def __init__(self, nsqd: Nsqd, tasks: TaskGroup) -> None:
        self._nsqd = nsqd
        self._tasks = tasks
        self._announcer: LookupAnnouncer | None = None
        self._revision = nsqd.broker.agenda.revision
        self._options = nsqd.options

    def start(self) -> None:
        """Begin to report and to announce, as far as the options ask for it."""
        if self._nsqd.options.statsd_address:
            self._report()
        if self._nsqd.options.lookupd_tcp_addresses:
            self._announce()

    def check(self) -> None:
        """Act on what has changed in the engine and in the options; cheap, to be called often."""
        nsqd, agenda = self._nsqd, self._nsqd.broker.agenda
        if agenda.has_questions:
            for session in agenda.take_questions():
                self._tasks.start_soon(self._ask_for_grant, session)
        if agenda.revision != self._revision or nsqd.options is not self._options:
            self._revision, self._options = agenda.revision, nsqd.options
            self._follow()

    def _follow(self) -> None:
        """Have the nsqlookupds told what there is now, and asked for what a new topic is to have."""
        nsqd = self._nsqd
        addresses = nsqd.options.lookupd_tcp_addresses
        if self._announcer is None and addresses:
            self._announce()
        if self._announcer is not None:
            nsqd.broker.asks_for_channels = bool(addresses)
            self._announcer.changed()
        for topic in nsqd.broker.take_new_topics():
            self._tasks.start_soon(self._ask_for_channels, topic)

    # ---- statsd ------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        from nsqkit.broker.statsd import StatsdReporter

        nsqd = self._nsqd
        self._tasks.start_soon(StatsdReporter(nsqd.broker, nsqd.options, nsqd.statsd_prefix, nsqd.clock).run)

    # ---- nsqlookupd --------------------------------------------------------------------------------------------

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
            logger.warning(
                "nsqlookupd refuses a node without HTTP: set --broadcast-http-port or --http-address"
            )
        self._announcer = LookupAnnouncer(
            lambda: nsqd.options, clock=nsqd.clock, registrations=self._registrations, node=node
        )
        nsqd.broker.asks_for_channels = True
        self._tasks.start_soon(self._announcer.run)

    def _registrations(self) -> dict[bytes, list[bytes]]:
        return {name: list(topic.channels) for name, topic in self._nsqd.broker.topics.items()}

    async def _ask_for_channels(self, topic: Topic) -> None:
        """Start a new topic with the channels that it has elsewhere."""
        names = [] if self._announcer is None else await self._announcer.channels_to_create(topic.name)
        nsqd = self._nsqd
        if nsqd.broker.topics.get(topic.name) is topic:
            topic.start(names, nsqd.clock.now_ns())
            nsqd.settle()

    # ---- auth servers ------------------------------------------------------------------------------------------

    async def _ask_for_grant(self, session: Session) -> None:
        from nsqkit.broker.auth import query_auth_servers

        nsqd, access, tls = self._nsqd, session.access, session.tls
        assert access is not None
        state: AuthState | RequestFailed
        try:
            state = await query_auth_servers(
                nsqd.options,
                secret=access.secret,
                remote_ip=session.remote_address.rpartition(":")[0].strip("[]"),
                tls=tls is not None,
                common_name="" if tls is None else tls.common_name,
                now_ns=nsqd.clock.now_ns,
                random=nsqd.broker.random,
            )
        except RequestFailed as error:
            state = error
            if session.ended:  # otherwise the reason is in the line about the end of the session
                logger.warning("PROTOCOL(V2): [%s] AUTH failed %s", session.remote_address, error)
        session.authorize(state)
        nsqd.settle()
