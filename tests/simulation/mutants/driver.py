"""Mutants of the tasks around the machines: a producer's pool, a consumer's handlers, connections and the broker."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        "a useful connection does not end the delays of those before it",
        "after a few lost connections a client waits for seconds before it connects again",
        "client/connection.py",
        "                self._reconnect.connected()\n",
        "",
        100,
        "driver",
        breaks=(36,),
    ),
    Mutant(
        "linger: the first waiter of a refused batch alone gets an answer",
        "publishes that were sent together wait for ever after the broker has refused their command",
        "producer/pool_connection.py",
        """                    again.append(receipt)
                    continue""",
        """                    again.append(receipt)
                    break""",
        500,
        "driver",
        breaks=(11,),
    ),
    Mutant(
        "the send window keeps the bytes of a cancelled publish",
        "after some cancelled publishes a producer with max_outstanding_bytes publishes nothing any more",
        "producer/publisher.py",
        """            if window is not None and size:
                _admit(window.release(size))""",
        """            if window is not None and size and receipt.is_answered:
                _admit(window.release(size))""",
        500,
        "driver",
        breaks=(11,),
    ),
    Mutant(
        "a publish that may have arrived is sent again though that is not allowed",
        "messages arrive twice without publish_attempts",
        "producer/publisher.py",
        "if self._closed or not attempts_left or not",
        "if self._closed or attempts_left < -3 or not",
        size="driver",
        plan="publish-on-a-half-open-connection",
        breaks=(20,),
    ),
    Mutant(
        "a lane has two workers",
        "two messages of one key are handled at the same time",
        "consumer/handling.py",
        "            queues = self._keyed_queues.queues\n        if len",
        "            queues = self._keyed_queues.queues * 2\n        if len",
        500,
        "driver",
        breaks=(19,),
    ),
    Mutant(
        "auto_touch touches once",
        "the messages of slow handlers time out and are handled twice",
        "consumer/handling.py",
        """                    message.touch()
            await self._clock""",
        """                    message.touch()
                    return
            await self._clock""",
        size="driver",
        plan="long-handler-that-is-touched",
        breaks=(5,),
    ),
    Mutant(
        "no connection is dialled after a handshake that took too long",
        "a client stays without a connection after a broker was slow once",
        "client/connection.py",
        """            self._handshake_deadline_ns = None
            if self._attempt is not None:
                self._attempt.cancel()""",
        """            self._handshake_deadline_ns = None
            self._stopped = True
            if self._attempt is not None:
                self._attempt.cancel()""",
        500,
        "driver",
        breaks=(28,),
    ),
    Mutant(
        "a stop requeues messages that are finished and not yet written",
        "each stop of a consumer delivers finished messages again",
        "consumer/consumer.py",
        """            await self.handlers.wait_ended(seconds)
            self._core.requeue_all()""",
        """            await self.handlers.wait_ended(seconds)
            for session in self._core.sessions:
                session.data_to_send()
            self._core.requeue_all()""",
        500,
        "driver",
        breaks=(18,),
    ),
    Mutant(
        "a broker that stops does not close its clients",
        "clients of a stopped broker wait until their heartbeat is missing",
        "broker/server.py",
        """        for session in list(self.broker.sessions):
            session.end(None)
        self._process""",
        """        self._process""",
        500,
        "driver",
        breaks=(30,),
    ),
    Mutant(
        "handlers that hang are not cancelled after close_timeout",
        "a consumer with a handler that hangs does not stop",
        "consumer/active_handlers.py",
        "            handling.cancel()\n",
        "            handling.cancel_timed_out()\n",
        500,
        "driver",
        breaks=(30,),
    ),
    Mutant(
        "input that is left is forgotten when reading resumes",
        "a client that sent many commands at once and read late waits for its answers until it sends another one",
        "transport/pump.py",
        """        if machine.has_input:
            self._schedule_turn()
        elif machine.ended or not machine.outbox_full:""",
        """        if machine.ended or not machine.outbox_full:""",
        500,
        "driver",
        breaks=(11,),
    ),
    Mutant(
        "an nsqd that is listed again is not connected again",
        "the messages of an nsqd that nsqlookupd dropped and listed again are not consumed after a lost connection",
        "consumer/connections.py",
        """            del self._present[address]
            self._connect_wanted()""",
        """            del self._present[address]""",
        size="driver",
        plan="nsqd-that-is-listed-again",
        breaks=(21,),
    ),
    Mutant(
        "a message is finished although its dead letter has failed",
        "a message is lost if its dead letter cannot be published",
        "consumer/handling.py",
        """            self._subscription.requeue(message, None, backoff=True)
        else:""",
        """            self._subscription.finish(message)
        else:""",
        500,
        "driver",
        breaks=(1,),
    ),
    Mutant(
        "a client that is half-open is never dropped",
        "messages of a vanished client are stuck, and a broker keeps its session",
        "broker/core/session/heartbeat.py",
        "if self._silence_ns and now_ns >= self.received_ns + self._silence_ns:",
        "if self._silence_ns < 0:",
        500,
        "driver",
        breaks=(29,),
    ),
    Mutant(
        "a client does not notice that its broker is silent",
        "a consumer on a half-open connection gets nothing any more",
        "client/session.py",
        "            self.end(HeartbeatTimeout(",
        "            str(HeartbeatTimeout(",
        500,
        "driver",
        breaks=(29,),
    ),
    Mutant(
        "a handler begins in a thread after run was cancelled",
        "a program ends late, by the time of one more handler",
        "consumer/handling.py",
        "        await anyio.lowlevel.checkpoint_if_cancelled()  # the shield would hide it",
        "        # the shield would hide it",
        plan="thread-begun-after-cancellation",
        breaks=(30,),
    ),
    Mutant(
        "RDY is raised while messages of another connection are in flight",
        "a consumer holds more messages than max_in_flight after RDY has moved to another nsqd",
        "consumer/flow.py",
        "        free = self.max_in_flight - self._claimed",
        "        free = self.max_in_flight - self.total_rdy_count",
        plan="rdy-below-messages-in-flight",
        breaks=(6,),
    ),
    Mutant(
        "RDY stays when late messages exceed max_in_flight",
        "a consumer takes new messages while it has more than max_in_flight",
        "consumer/flow.py",
        "        if self._claimed > self.max_in_flight:\n            return",
        "        if self._claimed < 0:\n            return",
        plan="rdy-beside-late-messages",
        breaks=(6,),
    ),
    Mutant(
        "a connection never yields its RDY",
        "with max_in_flight below the number of nsqds, some of them deliver nothing",
        "consumer/flow.py",
        "        if not window.rdy_count:\n            return False  # its",
        "        if window.rdy_count:\n            return False  # its",
        500,
        "driver",
        breaks=(27,),
    ),
    Mutant(
        "linger: a topic waits for the answer to another one",
        "publishes to a quiet topic take as long as linger",
        "producer/linger.py",
        "        if lane.in_flight_count:\n            self._timeless",
        "        if any(each.in_flight_count for each in self._lanes.values()):\n            self._timeless",
        plan="linger-of-another-topic",
        breaks=(27,),
    ),
    Mutant(
        "statistics of a consumer: lost connections do not count",
        "counters go back at each reconnect",
        "consumer/core.py",
        "        self._ended_counts.add(session.counts)\n",
        "",
        500,
        "driver",
        breaks=(13,),
    ),
    Mutant(
        "statistics of a producer: lost publishes do not count",
        "a program does not see how many publishes may be missing",
        "producer/pool_connection.py",
        "            self.lost_count += 1",
        "            pass",
        500,
        "driver",
        breaks=(13,),
    ),
    Mutant(
        "an ended session waits for its client to read, without a limit",
        "a client that reads nothing keeps its connection, and the memory of it, for ever",
        "transport/pump.py",
        "            self._wake.set()\n            self._limit_time()\n        elif",
        "            self._wake.set()\n        elif",
        1_000,
        "driver",
        breaks=(11,),
    ),
    Mutant(
        "a handler that was cancelled by another call of run has used up the last attempt",
        "after run_batches was cancelled and called again, messages are given up without a handler",
        "consumer/batch_handling.py",
        "                for message in last:\n                    last_attempts.forget(message)\n"
        "                for message in batch:",
        "                for message in batch:",
        size="driver",
        plan="batch-cancelled-by-another-call",
        breaks=(1,),
    ),
    Mutant(
        "messages of two nsqds with equal ids are taken for one",
        "a message is given up that no handler has begun",
        "consumer/dead_letter.py",
        "    return message.nsqd_address, message.id\n",
        "    return message.topic, message.id\n",
        3_000,
        "driver",
        breaks=(1,),
    ),
    Mutant(
        "a plain handler that is cancelled keeps its messages",
        "after run was cancelled and called again, messages wait for their timeout",
        "consumer/handling.py",
        "                            self._subscription.requeue_now(message)\n                            raise\n",
        "                            raise\n",
        1_000,
        "driver",
        breaks=(27,),
    ),
    Mutant(
        "messages that linger fail with one that is refused",
        "receipts of publishes fail because of another message, and are not sent again",
        "producer/session.py",
        "            unsent_batch = lost_batch\n",
        "",
        2_000,
        "driver",
        breaks=(34,),
    ),
    Mutant(
        "a message is not touched while it is given up",
        "a message with auto_touch times out while it is published elsewhere, and is published there twice",
        "consumer/handling.py",
        "        if self._is_watched:\n            self._begun[message] = anyio.CancelScope()",
        "        if False:\n            self._begun[message] = anyio.CancelScope()",
        size="driver",
        plan="slow-giving-up",
        breaks=(5,),
    ),
    Mutant(
        "reading is not resumed after the last turn of an input",
        "a client that has sent many commands at once gets no more answers",
        "transport/pump.py",
        "                self._process(None)\n                self._reading_paused = True\n",
        "                self._process(None)\n",
        size="driver",
        plan="reading-not-resumed",
        breaks=(11,),
    ),
    Mutant(
        "messages of a lost consumer are queued, and not delivered at once",
        "consumers that wait get them only when something else happens, such as a heartbeat",
        "broker/server.py",
        """            broker.close_session(session, clock.now_ns())
            self._process_events(self.clock.now_ns())
""",
        """            broker.close_session(session, clock.now_ns())
""",
        500,
        "driver",
        breaks=(27,),
    ),
    Mutant(
        "output that comes while a peer takes nothing waits for the next input",
        "a consumer with all messages in flight finishes them, and gets others with the next heartbeat",
        "transport/pump.py",
        """                wake = self._wake = anyio.Event()
                await self._send_output()
                if self._has_write_timeout and self._push is not None and not self._push.is_writable:
                    await send(b"")
                if self._reading_paused:
                    self._resume_reading()
                if machine.ended:
                    await self._send_output()  # for input that has waited for the stream to be read again
                    break
                self._writer_waits = True
""",
        """                await self._send_output()
                if self._has_write_timeout and self._push is not None and not self._push.is_writable:
                    await send(b"")
                if self._reading_paused:
                    self._resume_reading()
                if machine.ended:
                    await self._send_output()  # for input that has waited for the stream to be read again
                    break
                wake = self._wake = anyio.Event()
                self._writer_waits = True
""",
        size="driver",
        plan="output-for-a-slow-peer",
        breaks=(11,),
    ),
    Mutant(
        "the timer of a consumer does not learn of earlier deadlines",
        "the end of a backoff, or of a connection without heartbeats, comes late",
        "consumer/consumer.py",
        "            self._timer.check()\n",
        "            pass\n",
        500,
        "driver",
        breaks=(12,),
    ),
    Mutant(
        "a last attempt that took too long is forgotten",
        "a handler that is always slower than the message timeout gets its message again and again",
        "consumer/handling.py",
        """        if self._subscription.finish(message):
            self._last_attempts.forget(message)
""",
        """        self._subscription.finish(message)
        self._last_attempts.forget(message)
""",
        size="driver",
        plan="late-last-attempt",
        breaks=(8,),
    ),
    Mutant(
        "each dial counts as useful after one handshake",
        "an nsqd that is down is dialled ten times a second for ever",
        "client/connection.py",
        "            was_open = self.handshake_count > handshake_count\n",
        "            was_open = self.handshake_count > 0\n",
        500,
        "driver",
        breaks=(36,),
    ),
    Mutant(
        "the end of a handler does not wake a stop",
        "a consumer that is left while a handler runs in another task waits for the whole close_timeout",
        "consumer/active_handlers.py",
        "        handling.empty_keyed_queues()\n        self._subscription.after()\n        self._removed.set()\n",
        "        handling.empty_keyed_queues()\n        self._subscription.after()\n",
        500,
        "driver",
        breaks=(30,),
    ),
    Mutant(
        "a lower RDY forbids the messages that are held",
        "a consumer whose RDY is lowered ends its connection at the next message, and gets all of them once more",
        "consumer/session.py",
        "        if rdy_count > self._rdy_max:\n",
        "        if rdy_count != self._rdy_max:\n",
        500,
        "driver",
        breaks=(11,),
    ),
    Mutant(
        "a task that begins after the end of its scope is not cancelled",
        "a producer or a consumer that is left right after it was entered never ends",
        "client/task_scope.py",
        "        with anyio.CancelScope(shield=not self._is_ending) as scope:\n",
        "        with anyio.CancelScope(shield=True) as scope:\n",
        500,
        "driver",
        breaks=(29,),
    ),
)
