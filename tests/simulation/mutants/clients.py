"""Mutants of the producer's and the consumer's machines."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        "RDY of a lost connection stays claimed",
        "after some reconnects a consumer gets nothing any more",
        "consumer/flow.py",
        "        self._claimed -= window.claim\n        return self._reshare(now_ns)",
        "        return self._reshare(now_ns)",
        breaks=(26,),
    ),
    Mutant(
        "a cut connection confirms its publishes",
        "the program believes that lost messages are safe",
        "producer/session.py",
        "            self._fail(_tokens(sent), lost_batch if isinstance(sent, Batch) else lost)",
        "            self._ok.extend(_tokens(sent))",
        breaks=(11,),
    ),
    Mutant(
        "the time of the next redistribution is not renewed",
        "a consumer with more nsqds than max_in_flight uses a whole core",
        "consumer/flow.py",
        "        self.deadline_ns = now_ns + self.rdy_redistribute_interval_ns\n        takers",
        "        takers",
        breaks=(12,),
    ),
    Mutant(
        "a test message that is lost with its connection is not replaced",
        "after a failure and a lost connection a consumer gets nothing any more",
        "consumer/core.py",
        "            if test is not None and test.session is session:",
        "            if test is not None and test.session is session and not test.is_answered:",
        breaks=(27,),
    ),
    Mutant(
        "a publish that is withdrawn while it lingers is sent",
        "a message that the program has cancelled, and perhaps sent again, arrives",
        "producer/linger.py",
        "            body = batch.bodies.pop(token, None)\n            if body is not None:",
        "            body = batch.bodies.get(token)\n            if body is not None:",
        breaks=(2, 11),
    ),
    Mutant(
        "a test message that a handler has begun, and that is lost, is not replaced",
        "after a failure, a consumer whose handler hangs on a lost message gets nothing any more",
        "consumer/core.py",
        "            if test is not None and test.session is session:",
        "            if test is not None and test in self.inbox and test.session is session:",
        3_000,
        breaks=(27,),
    ),
    Mutant(
        "a stop leaves the queues of keyed workers alone",
        "after a stop, handlers begin messages that other consumers could have, and the stop lasts longer",
        "consumer/core.py",
        """        for queue in self.queues:
            self._requeue_queue(queue)
        for session""",
        """        self._requeue_queue(self.inbox)
        for session""",
        size="driver",
        breaks=(30,),
    ),
    Mutant(
        "a second stop with an earlier limit is ignored",
        "a program that is stopped once more, for a faster end, waits for its handlers as long as before",
        "consumer/core.py",
        "        if self._limit_ns is None or limit_ns < self._limit_ns:\n",
        "        if self._limit_ns is None:\n",
        breaks=(30,),
    ),
    Mutant(
        "publishes that were withdrawn after they were sent are kept",
        "a producer whose publishes are cancelled needs more and more memory",
        "producer/session.py",
        "            self._withdrawn.difference_update(ok, [token for token, _ in failed])\n",
        "            pass\n",
        3_000,
        breaks=(24,),
    ),
    Mutant(
        "FINs of a batch are sent at once on one of its connections",
        "messages of the other nsqds are finished late, and may time out",
        "consumer/subscription.py",
        "        for holder in finished:\n            holder.connection.flush()\n",
        "        for holder in list(finished)[:1]:\n            holder.connection.flush()\n",
        size="driver",
        plan="fins-of-two-nsqds",
        breaks=(27,),
    ),
    Mutant(
        "a batch has messages that timed out while others were given up",
        "a message is handled twice, or its last attempt is given up without a handler",
        "consumer/batch_handling.py",
        "                    waiting = [message for message in batch if not message.is_answered]\n",
        "                    waiting = [message for message in batch if message not in used_up]\n",
        size="driver",
        plan="batch-beside-a-slow-end",
        breaks=(5,),
    ),
    Mutant(
        "the counter of backoff has no limit",
        "after a long outage as many messages have to succeed, one by one, as have failed",
        "consumer/backoff.py",
        "        if step < 0 or not counter or ceiling_ns(counter + 1) > ceiling_ns(counter):\n",
        "        if True:\n",
        2_000,
        breaks=(27,),
    ),
    Mutant(
        "a waiting message that was touched late is looked at a quarter of its timeout later",
        "a handler begins shortly before the message times out, which is then handled twice (found by a world)",
        "consumer/core.py",
        """                    self._output[message.session] = None
                self._refresh_at(due_ns)
""",
        """                    self._output[message.session] = None
                    break
                else:
                    self._refresh_at(due_ns)
""",
        plan="touch-by-a-late-consumer",
        breaks=(5,),
    ),
    Mutant(
        "messages that wait for the worker of their key are not touched",
        "messages behind a slow one with the same key time out, and are delivered again and again",
        "consumer/core.py",
        "        for queue in self.queues:\n            for message in queue.copy():\n                while (due_ns",
        "        for queue in (self.inbox,):\n            for message in queue.copy():\n                while (due_ns",
        2_000,
        "driver",
        breaks=(5,),
    ),
    Mutant(
        "a refused TOUCH counts as the refusal of a FIN",
        "a Spark partition leaves out the row of a message that nsqd has finished",
        "consumer/confirmation.py",
        "if (self.refusal, message.id) in barrier.refused]",
        "if any(message_id == message.id for _, message_id in barrier.refused)]",
        plan="late-touch-before-a-confirmation",
        breaks=(9,),
    ),
    Mutant(
        "refusals count for later barriers, too",
        "a message counts as failed that nsqd has delivered again and finished",
        "consumer/session.py",
        "        self._refused.clear()\n        self._events.append(barrier)\n",
        "        self._events.append(barrier)\n",
        breaks=(9,),
    ),
    Mutant(
        "a FIN whose connection ended before its confirmation counts as accepted",
        "finish_confirmed names no message that nsqd will deliver again",
        "consumer/session.py",
        """            self._barriers.popleft().is_passed = True
""",
        """            barrier = self._barriers.popleft()
            barrier.refused, barrier.is_passed = frozenset(self._refused), True
""",
        plan="fins-lost-with-their-connection",
        breaks=(9,),
    ),
    Mutant(
        "a message that arrives while another one without a key is given up wakes no worker",
        "it waits until something else happens on a connection (found by a world)",
        "consumer/handling.py",
        "                while failures := self._keyed_queues.sort():  # others may arrive meanwhile\n",
        "                if failures := self._keyed_queues.sort():\n",
        plan="message-behind-one-without-a-key",
        breaks=(27,),
    ),
    Mutant(
        "a worker that could take a message waits for the next one",
        "of several messages that arrive together, one is handled after the other in spite of concurrency",
        "consumer/handling.py",
        "            return bool(queue) or await self._wait_for_arrival()\n",
        "            return await self._wait_for_arrival()\n",
        1_000,
        "driver",
        breaks=(27,),
    ),
    Mutant(
        "a lost nsqd during a request to nsqlookupd leads to no early request",
        "a consumer finds the nsqd at its new address a minute later",
        "lookup/schedule.py",
        """        if self._woken:
            self._woken = False
            self.wake(now_ns)
""",
        "        self._woken = False\n",
        size="driver",
        plan="nsqd-lost-during-a-slow-list",
        breaks=(28,),
    ),
    Mutant(
        "a batch waits while nothing more can come",
        "with max_messages above max_in_flight, each batch takes the whole of max_wait",
        "consumer/batches.py",
        "            while len(self._inbox) < self._max_messages and not subscription.core.flow.is_starved:\n",
        "            while len(self._inbox) < self._max_messages:\n",
        size="driver",
        breaks=(27,),
    ),
    Mutant(
        "the pause after failed requests to nsqlookupd has no limit",
        "after an nsqlookupd was down for an hour, a consumer finds its nsqds an hour later",
        "lookup/schedule.py",
        "        ceiling_ns = min(self._interval_ns, self._gap_ns << min(self.failure_count, 32))\n",
        "        ceiling_ns = self._gap_ns << min(self.failure_count, 32)\n",
        size="driver",
        breaks=(28,),
    ),
    Mutant(
        "messages count as begun while others of their batch are given up",
        "with two workers, a message is given up that no handler has begun at its last attempt (found by a world)",
        "consumer/batch_handling.py",
        """                for message in used_up:
                    await""",
        """                for message in batch:
                    if message.attempts >= single.attempts_max:
                        last_attempts.begin(message)
                for message in used_up:
                    await""",
        size="driver",
        plan="batch-beside-a-slow-giving-up",
        breaks=(1,),
    ),
    Mutant(
        "a last attempt of a batch counts as used up though its handler has returned",
        "a message whose FIN is lost with the connection is given up, or becomes a dead letter, after it was handled",
        "consumer/batch_handling.py",
        "        in_time = [message for message in last if not message.is_answered]\n"
        "        self._subscription.finish_all(begun)\n",
        "        self._subscription.finish_all(begun)\n"
        "        in_time = [message for message in last if not message.is_answered]\n",
        size="driver",
        plan="fin-of-a-last-attempt-is-lost",
        breaks=(1,),
    ),
    Mutant(
        "a connection that is left ends before it confirms FINs",
        "a program that confirms its last messages while it stops does not know whether they are finished",
        "consumer/session.py",
        "self.state is State.DISMISSED and not self.held and not self._barriers:\n",
        "self.state is State.DISMISSED and not self.held:\n",
        1_000,
        "driver",
        breaks=(9,),
    ),
)
