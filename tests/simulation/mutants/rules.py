"""Mutants that each break one rule of the broker or of a producer which the others leave whole."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

CHANNEL: Final = "broker/core/topics/channel.py"
SESSION: Final = "broker/core/session/session.py"
DISK_QUEUE: Final = "broker/core/disk/disk_queue.py"

MUTANTS: Final = (
    Mutant(
        "a lost publish counts as not sent",
        "a program publishes it once more, and the message exists twice",
        "producer/session.py",
        '        lost: NSQError = ConnectionLost("the connection was lost before the broker answered")',
        '        lost: NSQError = NotConnected("the connection was lost before the broker answered")',
        breaks=(2,),
    ),
    Mutant(
        "the first message of a publish goes to a channel twice",
        "it is handled twice, with two FINs",
        CHANNEL,
        "        self.queue.put(frames)\n",
        "        self.queue.put([*frames, frames[0]])\n",
        breaks=(3, 5),
    ),
    Mutant(
        "CLS does not stop the delivery",
        "a consumer that closes gets messages, which wait for their timeouts",
        SESSION,
        '        self._rules.move("CLS")\n        self._stop_delivery()\n',
        '        self._rules.move("CLS")\n',
        breaks=(7,),
    ),
    Mutant(
        "the first consumer that is ready takes all",
        "the other consumers of a channel have nothing to do",
        CHANNEL,
        "                ready[subscription] = capacity\n                ready.move_to_end(subscription)\n",
        "                ready[subscription] = capacity\n",
        4_000,
        breaks=(27,),
    ),
    Mutant(
        "statistics: FIN counts twice",
        "a dashboard shows more messages than there are",
        SESSION,
        "        subscription.finish_count += len(command.params) - len(missing)",
        "        subscription.finish_count += 2 * (len(command.params) - len(missing))",
        breaks=(13,),
    ),
    Mutant(
        "statistics: REQ does not count",
        "a dashboard shows no failures",
        CHANNEL,
        "        self.requeue_count += 1\n",
        "",
        breaks=(13,),
    ),
    Mutant(
        "statistics: timeouts count once for all messages of a connection",
        "a dashboard hides handlers that hang",
        CHANNEL,
        "            self.timeout_count += len(frames)\n",
        "            self.timeout_count += 1\n",
        breaks=(13,),
    ),
    Mutant(
        "positions get their name once only",
        "all messages since the first sync are delivered once more after a crash",
        "broker/core/disk/sync.py",
        "            if self.queue.is_current(self):\n",
        "            if self.queue.is_current(self) and not store.exists(self.meta_name):\n",
        breaks=(9, 17),
    ),
    Mutant(
        "the depth in the file of positions is too high",
        "nsqd, or the next start, reports messages that should have been left",
        "broker/core/disk/positions.py",
        "% (depth, read.file",
        "% (depth + (depth > 1), read.file",
        breaks=(17,),
    ),
    Mutant(
        "the file of positions stays after its topic is deleted",
        "a topic that is created again has a depth without messages",
        DISK_QUEUE,
        "        for name in (*map(self._file_name, reversed(numbers)), self._meta_name):\n",
        "        for name in map(self._file_name, reversed(numbers)):\n",
        breaks=(17,),
    ),
    Mutant(
        "the last file of records stays after its topic is deleted",
        "the disk fills with files that nothing reads",
        DISK_QUEUE,
        "        numbers = self._numbers(self._first_file, self._write.file)\n        self._read",
        "        numbers = self._numbers(self._first_file, self._write.file - 1)\n        self._read",
        4_000,
        breaks=(17,),
    ),
    Mutant(
        "subscriptions of lost connections stay",
        "each connection that was ever made keeps memory",
        "broker/core/broker.py",
        "        del self.sessions.by_subscription[subscription]\n",
        "",
        breaks=(23,),
    ),
    Mutant(
        "the error of one client ends the oldest session",
        "any program that connects can end the connections of others",
        SESSION,
        "        self._end_in_order(log_text(error))\n",
        "        self._end_in_order(log_text(error))\n        next(iter(self._sessions)).end(log_text(error))\n",
        breaks=(25,),
    ),
    Mutant(
        "fsync: the refusal of a command ends its session before the answers that wait for a commit",
        "a client that sends PUBs and a wrong command gets no answer, and publishes all of them again",
        "broker/core/session/turns.py",
        "        if self._buffer.is_holding:\n            self._end_reason",
        "        if self._buffer.is_holding and False:\n            self._end_reason",
        3_000,
        breaks=(11,),
    ),
    Mutant(
        "FIN of another client finishes the message",
        "a message is lost when its owner fails after that",
        SESSION,
        "        missing = in_flight.remove_all(command.params)\n",
        "        missing = in_flight.remove_all(command.params)\n"
        "        _ = [holder.in_flight.remove(message_id) for message_id in missing for holder in channel.holders()]\n",
        2_000,
        breaks=(1, 10),
    ),
    Mutant(
        "REQ out of turn is not refused",
        "a client gets no error for a message that it does not hold",
        SESSION,
        '            return self._report_missing([message_id], RequeueFailed, "REQ")\n',
        "            return None\n",
        breaks=(10, 11),
    ),
    Mutant(
        "a topic does not give the next part of the messages that wait",
        "when a topic with more than 10,000 waiting messages is unpaused, the others wait for the next change",
        "broker/core/topics/topic.py",
        "        return None if self._flows else now_ns\n",
        "        return None\n",
        2_000,
        breaks=(1,),
    ),
    Mutant(
        "the end of a connection behind a command that waits for an auth server is forgotten",
        "the sessions of clients that have gone stay until a heartbeat is missing, with their messages",
        "broker/core/session/turns.py",
        "            if self._eof_received:\n                self.receive_eof(now_ns)\n",
        "",
        3_000,
        breaks=(24,),
    ),
    Mutant(
        "the delay of REQ is limited by the maximum of the message timeout",
        "messages that are requeued for an hour come back after a quarter of it",
        "broker/core/session/session.py",
        "max(delay_ns, 0), self._options.max_req_timeout_ns)",
        "max(delay_ns, 0), self._options.max_msg_timeout_ns)",
        3_000,
        breaks=(16,),
    ),
    Mutant(
        "a queue that is emptied keeps the ids of messages that were put aside",
        "with --durability=fsync the next messages of the channel wait until there are more of them",
        "broker/core/disk/durable_queue.py",
        "        self._aside.clear()\n        try:\n            super().empty()\n",
        "        try:\n            super().empty()\n",
        breaks=(1,),
    ),
    Mutant(
        "the room for delays in a topic stays used when its messages have gone to the channels",
        "with --durability=fsync messages that are deferred while a topic is paused come without their delays",
        "broker/core/topics/topic.py",
        "        if self._flows:\n            self._delays_left = self._delays_max\n",
        "",
        breaks=(1,),
    ),
    Mutant(
        "another attempt to read forgets the deferred messages",
        "deferred messages of a channel whose disk could not be read for a moment are never delivered",
        "broker/core/topics/channel.py",
        "        self._queue_due(now_ns)\n"
        "        self._changes.channels[self] = None\n"
        "        if (deadline_ns := self.deferred.next_deadline()) is not None:\n",
        "        self._changes.channels[self] = None\n"
        "        if self._queue_due(now_ns) and (deadline_ns := self.deferred.next_deadline()) is not None:\n",
        breaks=(26,),
    ),
)
