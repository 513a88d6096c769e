"""Mutants of nsqlookupd, of the broker that announces itself, and of the consumer that polls."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

REGISTRY: Final = "lookupd/registry.py"
LOOKUP_PEER: Final = "broker/core/lookup_peer.py"
CONNECTIONS: Final = "consumer/connections.py"
TOPIC: Final = "broker/core/topics/topic.py"

MUTANTS: Final = (
    Mutant(
        "nsqlookupd: a tombstone never expires",
        "consumers never get the messages of a broker that is used again",
        REGISTRY,
        "        return tombstoned_at_ns is not None and now_ns - tombstoned_at_ns < self._tombstone_lifetime_ns",
        "        return tombstoned_at_ns is not None",
        500,
        breaks=(21,),
    ),
    Mutant(
        "nsqlookupd: a broker that has vanished stays listed",
        "clients dial an address for ever at which nothing listens",
        REGISTRY,
        "        return now_ns - peer.last_update_ns <= self._inactive_producer_timeout_ns",
        "        return True",
        500,
        breaks=(28,),
    ),
    Mutant(
        "nsqlookupd: UNREGISTER of a channel removes its topic",
        "a broker is not found any more after one of its channels was deleted",
        REGISTRY,
        "        was_there = self._remove_from_channel(peer, topic, channel)\n",
        "        was_there = self._remove_from_channel(peer, topic, channel)\n"
        "        self._remove_from_topic(peer, topic)\n",
        plan="last-consumer-of-an-ephemeral-channel",
        breaks=(21,),
    ),
    Mutant(
        "nsqlookupd: a lost connection leaves its broker listed",
        "clients dial a broker that has stopped until it counts as inactive",
        REGISTRY,
        "        for topic in topics:\n            self._remove_from_topic(peer, topic)",
        "        for topic in topics:\n            del peer.topics[topic]",
        500,
    ),
    Mutant(
        "nsqlookupd: an ephemeral channel outlives its last consumer",
        "new topics are made with channels that nothing consumes",
        REGISTRY,
        "        if is_ephemeral(channel) and not self._channels.get(topic, {}).get(channel):",
        "        if False:",
        plan="last-consumer-of-an-ephemeral-channel",
        breaks=(21,),
    ),
    Mutant(
        "nsqlookupd: the registrations are lost with its restart",
        "consumers find no broker until each has a new topic",
        LOOKUP_PEER,
        "            self.info = decode_info(answer)\n            self._announce_all()",
        "            self.info = decode_info(answer)",
        500,
        breaks=(21,),
    ),
    Mutant(
        "nsqlookupd: a deleted topic stays announced",
        "consumers connect to brokers that do not have their topic",
        LOOKUP_PEER,
        "        self._queue.append(encode_unregister(topic))\n",
        "",
        500,
        breaks=(21,),
    ),
    Mutant(
        "nsqlookupd: a broker waits for an answer for ever",
        "a connection that was lost silently is never made again",
        LOOKUP_PEER,
        "        if self._answer_deadline_ns is not None and now_ns >= self._answer_deadline_ns:",
        "        if False:",
        1_000,
        breaks=(29,),
    ),
    Mutant(
        "consumer: a broker that left the list and came back is not dialled",
        "its messages are not consumed until the consumer restarts",
        CONNECTIONS,
        "            del self._present[address]\n            self._connect_wanted()",
        "            self._connect_wanted()",
        1_000,
        breaks=(28,),
    ),
    Mutant(
        "consumer: a broker that is not listed is dialled for ever",
        "each consumer dials all addresses that a broker ever had",
        CONNECTIONS,
        "            if connection is not None and _is_open(connection):\n                connection.stop()",
        "            if connection is not None and _is_open(connection):\n                pass",
        1_000,
        breaks=(21,),
    ),
    Mutant(
        "consumer: the last nsqlookupd overrules the others",
        "brokers that one nsqlookupd misses are not consumed",
        "lookup/merge.py",
        "        for response in self._responses.values():",
        "        for response in [*self._responses.values()][-1:]:",
        500,
        breaks=(21,),
    ),
    Mutant(
        "consumer: a topic that is gone stays found",
        "brokers without the topic are dialled for ever",
        "lookup/lookupd_client.py",
        "        if refusal.message != TOPIC_NOT_FOUND:",
        "        if True:",
        500,
        breaks=(21,),
    ),
    Mutant(
        "consumer: the wait after failed requests has no limit",
        "after an outage of nsqlookupd new brokers are found hours later",
        "lookup/schedule.py",
        "        ceiling_ns = min(self._interval_ns, self._gap_ns << min(self.failure_count, 32))",
        "        ceiling_ns = self._gap_ns << min(4 * self.failure_count, 32)",
        1_000,
        breaks=(28,),
    ),
    Mutant(
        "a listed channel that cannot be opened ends the broker",
        "a limit of open files or a wrong permission stops all topics",
        TOPIC,
        "            except OSError as error:\n                failures[name] = error",
        "            except OSError:\n                raise",
        plan="listed-channel-that-cannot-be-opened",
        breaks=(25,),
    ),
    Mutant(
        "a new topic does not start with the listed channels",
        "channels lose the messages that are published before their consumers connect",
        TOPIC,
        "        for name in channel_names:\n            try:",
        "        for name in ():\n            try:",
        500,
        breaks=(14,),
    ),
    Mutant(
        "a new topic does not wait for the listed channels",
        "the first of its channels gets messages that others miss",
        TOPIC,
        "        if self.paused or not self._started or not self.channels:",
        "        if self.paused or not self.channels:",
        1_000,
        breaks=(1,),
    ),
    Mutant(
        "a connection that is lost during a request causes no other request",
        "a consumer finds an nsqd that has moved only after the whole interval",
        "lookup/schedule.py",
        "            self._woken = True\n            return\n",
        "            return\n",
        3_000,
        breaks=(28,),
    ),
    Mutant(
        "a broker forgets that something changed while it dialled an nsqlookupd",
        "after an attempt that failed, a new topic is announced up to 15 s later",
        "broker/lookup_announcer.py",
        "                with self._pause:\n",
        "                with anyio.CancelScope() as self._pause:\n",
        2_000,
        "driver",
        breaks=(21,),
    ),
    Mutant(
        "a consumer that leaves an nsqd takes no other one for it",
        "with max_connections, messages of an nsqd that could be used now wait for the next poll of nsqlookupds",
        "consumer/connections.py",
        "        self._drop(address)\n        self._connect_wanted()\n        return known\n",
        "        self._drop(address)\n        return known\n",
        2_000,
        "driver",
        breaks=(28,),
    ),
    Mutant(
        "nsqlookupd forgets the end of a connection behind commands that wait for their turn",
        "the connection and its registrations stay until nsqlookupd ends",
        "lookupd/session.py",
        """            self._process_commands(now_ns)
            if self._eof_received:
                self.receive_eof(now_ns)
""",
        "            self._process_commands(now_ns)\n",
        breaks=(24,),
    ),
)
