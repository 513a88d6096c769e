"""The nodes of a spec and the messages that wait in its channel, found over HTTP by the driver.

        nsqlookupds ─▶ the nsqds of each topic, for ``TTL`` seconds ─▶ nodes ─▶ a plan
        each nsqd   ─▶ depth, in flight, deferred                   ─▶ whether a batch has something to do

A node exists if the last answer of at least one nsqlookupd lists it. An nsqlookupd that fails changes nothing, and if
all fail, the last list stays. The functions block; each call has an event loop in a thread of its own, because the
program may have one already, as a notebook has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import anyio
import attrs

from nsqkit.admin.nsqd import NsqdAdmin
from nsqkit.admin.stats import ChannelStats
from nsqkit.clock import NS_PER_S
from nsqkit.errors import RequestFailed
from nsqkit.http.daemon import Daemon
from nsqkit.lookup.lookupd_client import fetch_nsqds, query_daemons
from nsqkit.lookup.merge import MergedResponses
from nsqkit.spark.batch_plan import SourceNode, named_nodes
from nsqkit.spark.options import HTTP_TIMEOUT, ConsumerSpec
from nsqkit.transport.address import join_address
from nsqkit.wire import lookup as wire_lookup

T = TypeVar("T")

logger = logging.getLogger("nsqkit.spark")

TTL: Final = 5.0
"""Seconds for which a list of nsqds is used. A stream may plan several batches per second."""


@attrs.frozen
class Backlog:
    """The messages of a channel, over all nsqds and topics.

    Attributes:
        depth: messages that wait.
        in_flight: messages that were delivered to a consumer.
        deferred: messages that wait for the end of a delay.
        finished_count: messages that were finished, counted since each nsqd's start. Those that it read from its disk
            then are not added, so only the difference of two counts has a meaning.
    """

    depth: int
    in_flight: int
    deferred: int
    finished_count: int


class Discovery:
    """Finds the nodes of a spec and their messages; it belongs to one thread.

    Args:
        spec: the topics, the channel and the addresses.
        now_ns: a clock in ns that does not go back.
    """

    def __init__(self, spec: ConsumerSpec, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._spec = spec
        self._now_ns = now_ns
        self._responses: MergedResponses[tuple[str, wire_lookup.Node]] = MergedResponses()
        self._listed_ns: int | None = None
        self._failing: dict[str, str] = {}

    def nodes(self) -> tuple[SourceNode, ...]:
        """Return the nodes of the topics now; none for a topic that no nsqd has yet.

        Raises:
            RequestFailed: no nsqlookupd has ever answered; the text has the reason of each.
        """
        if self._spec.nsqd_tcp_addresses:
            return named_nodes(self._spec)
        self._refresh()
        return tuple(
            SourceNode(address, topic) for topic in self._spec.topics for address in self._http_addresses(topic)
        )

    def backlog(self) -> Backlog | None:
        """Return the messages that are not finished; None if they are not known.

        They are known if every nsqd has answered and has the channel. A consumer creates a channel, so a batch is due
        where it is missing. An nsqd that does not answer may have messages.

        Raises:
            RequestFailed: no nsqlookupd has ever answered.
        """
        topics_of: dict[str, list[str]] = {}
        if self._spec.nsqd_tcp_addresses:
            topics_of = {address: list(self._spec.topics) for address in self._spec.nsqd_http_addresses}
        else:
            self._refresh()
            for topic in self._spec.topics:
                for address in self._http_addresses(topic).values():
                    topics_of.setdefault(address, []).append(topic)
        if not topics_of or "" in topics_of:
            # There is no nsqd, or one without HTTP.
            return None
        found = _run(lambda: self._query_stats(topics_of))
        if len(found) < sum(map(len, topics_of.values())):
            return None
        depth = sum(channel.depth for channel in found)
        in_flight = sum(channel.in_flight_count for channel in found)
        deferred = sum(channel.deferred_count for channel in found)
        message_count = sum(channel.message_count for channel in found)
        return Backlog(depth, in_flight, deferred, message_count - depth - in_flight - deferred)

    def _refresh(self) -> None:
        """Query the nsqlookupds if the list is older than ``TTL``."""
        now_ns = self._now_ns()
        if self._listed_ns is not None and now_ns < self._listed_ns + TTL * NS_PER_S:
            return
        try:
            _run(self._query_lookupds)
        except RequestFailed as error:
            if self._listed_ns is None:
                raise RequestFailed(f"no nsqlookupd has answered: {error}") from error
            logger.warning("no nsqlookupd has answered, so the last list of nsqds stays: %s", error)
        self._listed_ns = now_ns

    async def _query_lookupds(self) -> None:
        daemons = self._spec.lookup_options().daemons(self._spec.lookupd_http_addresses)
        await query_daemons(daemons, self._fetch, self._responses)

    async def _fetch(self, daemon: Daemon) -> dict[str, tuple[str, wire_lookup.Node]]:
        """Return the topics with the nsqds that one nsqlookupd lists."""
        return {
            f"{topic} {address}": (topic, node)
            for topic in self._spec.topics
            for address, node in (await fetch_nsqds(daemon, topic)).items()
        }

    def _http_addresses(self, wanted: str) -> dict[str, str]:
        """Return the HTTP address of each nsqd of a topic, empty if it has none, by its TCP address."""
        options = self._spec.lookup_options()
        return {
            address: join_address(node.broadcast_address, node.http_port) if node.http_port else ""
            for topic, node in self._responses.merged().values()
            if topic == wanted
            for address in options.select([node])
        }

    async def _query_stats(self, topics_of: dict[str, list[str]]) -> list[ChannelStats]:
        """Return the channels of the topics of each nsqd, as far as they exist and the nsqds answer."""
        found: list[ChannelStats] = []

        async def query(address: str, topics: list[str]) -> None:
            admin = NsqdAdmin(address, request_timeout=HTTP_TIMEOUT)
            try:
                stats = await admin.stats(
                    topics[0] if len(topics) == 1 else "", self._spec.channel, include_clients=False
                )
            except RequestFailed as error:
                self._record_failure(address, str(error))
                return
            self._failing.pop(address, None)
            found.extend(
                channel
                for topic in stats.topics
                if topic.topic_name in topics
                for channel in topic.channels
                if channel.channel_name == self._spec.channel
            )

        async with anyio.create_task_group() as tasks:
            for address, topics in topics_of.items():
                tasks.start_soon(query, address, topics)
        return found

    def _record_failure(self, address: str, reason: str) -> None:
        # An idle stream queries several times per second; the log has each reason once.
        if self._failing.get(address) != reason:
            logger.warning("the messages of an nsqd are not known: %s", reason)
        self._failing[address] = reason


def _run(function: Callable[[], Awaitable[T]]) -> T:
    """Run an async function to its end in a thread."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(anyio.run, function).result()
