"""Mutants of the broker's engine: topics, channels, sessions."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

CHANNEL: Final = "broker/core/topics/channel.py"
TOPIC: Final = "broker/core/topics/topic.py"
SUBSCRIPTION: Final = "broker/core/topics/subscription.py"

MUTANTS: Final = (
    Mutant(
        "a large batch ends with its first part",
        "most messages of a large MPUB are lost, though it was answered by OK",
        "broker/core/session/session.py",
        "        if batch.put_part(self._now_ns):\n            self._batch",
        "        if batch.put_part(self._now_ns) and False:\n            self._batch",
        breaks=(1,),
    ),
    Mutant(
        "statsd: requeues are reported as a sum",
        "graphs of requeues rise for ever",
        "broker/core/report/statsd.py",
        "{channel['requeue_count'] - (last['requeue_count'] if last else 0)}",
        "{channel['requeue_count']}",
        breaks=(13,),
    ),
    Mutant(
        "what follows the answer to IDENTIFY is not compressed",
        "clients that compress cannot connect",
        "broker/core/session/frame_buffer.py",
        "        return data if self.is_plain else self._layers.encode(data)",
        "        return data",
    ),
    Mutant(
        "touched messages of a lost connection",
        "they never come back: lost until the broker restarts",
        CHANNEL,
        "        if subscription.in_flight:\n            self._abandoned[subscription] = timer",
        "        if subscription.in_flight.untouched:\n            self._abandoned[subscription] = timer",
        2_500,
        breaks=(26,),
    ),
    Mutant(
        "emptying a channel forgets the messages of lost connections",
        "an operator empties a channel, and messages come back when they time out",
        CHANNEL,
        "        for held in (self.subscriptions, self._abandoned):",
        "        for held in (self.subscriptions,):",
        breaks=(1,),
    ),
    Mutant(
        "the end of a consumer deletes a newer ephemeral channel of the same name",
        "a channel that was made again loses its messages and its consumers",
        "broker/core/broker.py",
        "topic is not None and topic.channels.get(channel.name) is channel",
        "topic is not None and channel.name in topic.channels",
        breaks=(14,),
    ),
    Mutant(
        "sets of lost connections stay",
        "the memory of the broker grows with each reconnect",
        CHANNEL,
        "                self._abandoned.pop(subscription, None)",
        "                pass",
        breaks=(24,),
    ),
    Mutant(
        "sets of lost connections forget their deadline",
        "messages of a consumer that has died never come back",
        CHANNEL,
        "            self._abandoned[subscription] = timer\n",
        "            self._abandoned[subscription] = timer\n            self._timers.cancel(timer)\n",
        breaks=(12, 26),
    ),
    Mutant(
        "attempts do not rise at a timeout",
        "max_attempts never applies to a handler that hangs",
        CHANNEL,
        "            self._put_back([for_redelivery(frame) for frame in frames])\n            self.update_ready",
        "            self._put_back(frames)\n            self.update_ready",
        breaks=(5, 8),
    ),
    Mutant(
        "unpaused channels wait for another message",
        "messages are stuck in a channel that was paused",
        CHANNEL,
        "        self.paused = False\n        self._changes.raise_revision()\n"
        "        self._changes.channels[self] = None",
        "        self.paused = False\n        self._changes.raise_revision()",
        breaks=(27,),
    ),
    Mutant(
        "delays of REQ are ignored",
        "a message that is requeued for an hour comes back at once, in a loop",
        CHANNEL,
        "        if due_ns is None:\n            self._put_back((frame,))",
        "        if True:\n            self._put_back((frame,))",
        breaks=(16,),
    ),
    Mutant(
        "a topic forgets that its last channel is gone",
        "messages that are published until the next channel exists are lost",
        TOPIC,
        "        self._flows = self._flows and bool(self.channels)\n",
        "",
        breaks=(1,),
    ),
    Mutant(
        "a waiting DPUB loses its delay",
        "delayed messages to a paused topic come at once",
        TOPIC,
        "            self.waiting_delays_ns.update(dict.fromkeys(map(id_of, kept), delay_ns))",
        "            pass",
        breaks=(1, 16),
    ),
    Mutant(
        "waiting messages go to one channel",
        "all other channels of the topic lose them",
        TOPIC,
        "for channel in self.channels.values()]\n        if all(are_safe)",
        "for channel in [*self.channels.values()][:1]]\n        if all(are_safe)",
        breaks=(1,),
    ),
    Mutant(
        "TOUCH has no limit",
        "a handler that hangs keeps its message for ever",
        SUBSCRIPTION,
        "min(now_ns + timeout_ns, delivered_ns + max_timeout_ns)",
        "now_ns + timeout_ns",
        2_500,
        breaks=(10, 12),
    ),
    Mutant(
        "RDY counts deliveries of the moment alone",
        "a consumer is flooded with all messages of its channel",
        SUBSCRIPTION,
        "        return self.rdy_count - len(in_flight.untouched) - len(in_flight.touched)",
        "        return self.rdy_count - len(in_flight.touched)",
        breaks=(6, 27),
    ),
    Mutant(
        "RDY does not count touched messages",
        "a consumer that touches gets more than it asked for",
        SUBSCRIPTION,
        "        return self.rdy_count - len(in_flight.untouched) - len(in_flight.touched)",
        "        return self.rdy_count - len(in_flight.untouched)",
        breaks=(6,),
    ),
    Mutant(
        "the session of a client that has vanished stays",
        "its messages are delivered to it again and again",
        "broker/core/session/heartbeat.py",
        "        if self._silence_ns and now_ns >= self.received_ns + self._silence_ns:",
        "        if self._silence_ns < 0:",
        breaks=(29,),
    ),
    Mutant(
        "statsd: a report that cannot be sent counts as sent",
        "after each time in which statsd is not reached, its counts are too low",
        "broker/statsd.py",
        """        address = self._options.statsd_address
        try:
""",
        """        address = self._options.statsd_address
        self._packets()
        try:
""",
        size="driver",
        breaks=(13,),
    ),
    Mutant(
        "messages in nsqd's output buffer wait for another interval if the end of theirs was missed",
        "with --timing=nsqd, a busy broker keeps messages for twice the time that the client allows",
        "broker/core/session/nsqd_frame_buffer.py",
        """        elif self._interval_ns and self.flush_ns is None:  # the time of earlier ones may have come
            if now_ns >= self._interval_end_ns:  # the tick of an interval without messages waits in Go's ticker
                self.end_interval(now_ns)
            else:
                self.flush_ns = self._interval_end_ns
""",
        """        elif self._interval_ns:
            count = max(1 + (now_ns - self._interval_end_ns) // self._interval_ns, 0)
            self._interval_end_ns += count * self._interval_ns
            self.flush_ns = self._interval_end_ns
""",
        plan="late-end-of-an-output-interval",
        breaks=(27,),
    ),
    Mutant(
        "a client that sends and reads nothing stays",
        "its connection, its output and its messages in flight stay with the broker",
        "broker/core/session/heartbeat.py",
        "        self._due_ns = _tick(now_ns + self._interval_ns)\n        self.has_sent = False\n",
        "        self._due_ns = _tick(now_ns + self._interval_ns)\n",
        size="driver",
        plan="client-that-sends-and-reads-nothing",
        breaks=(11,),
    ),
    Mutant(
        "a body without a length is cut off at the limit",
        "the beginning of a message over max_msg_size is published over HTTP, and the answer is OK",
        "http/server.py",
        "        wanted = limit + 1\n",
        "        wanted = limit\n",
        size="driver",
        breaks=(11,),
    ),
)
