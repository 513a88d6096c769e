"""Mutants of the clients that threads use without ``await``."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        "a receive that has timed out takes the next message",
        "a message waits until its timeout although a thread receives",
        "consumer/thread_receiver.py",
        "            del self._waiting[request]\n            request.resolve(None, [])",
        "            request.resolve(None, [])",
        size="driver",
        plan="receive-that-times-out",
        breaks=(27,),
    ),
    Mutant(
        "a batch whose messages were taken back is returned empty",
        "a loop over batches ends, and the program stops consuming",
        "consumer/batches.py",
        """            if self._inbox:  # else its messages were requeued, or another receiver has taken them
                return self.take()""",
        "            return self.take()",
        500,
        "driver",
        breaks=(27,),
    ),
    Mutant(
        "the first of several waiting threads gets all messages",
        "threads wait while another one is busy and has the messages",
        "consumer/thread_receiver.py",
        "            count = min(len(inbox), request.max_messages or len(inbox))\n",
        "            count = len(inbox)\n",
        500,
        "driver",
        breaks=(27,),
    ),
    Mutant(
        "bytes that a lease has not sent are lost",
        "a connection is lost after a thread published while its nsqd was slow",
        "producer/thread_lease.py",
        "connection.attach(self._unsent)",
        "connection.attach()",
        size="driver",
        plan="lease-that-ends-with-unsent-bytes",
        breaks=(13,),
    ),
    Mutant(
        "calls that wait at the end of a client get no error",
        "threads that publish while another one closes the producer wait for ever",
        "loop_thread/loop_client.py",
        """            self._is_open = False
            self._refuse_all()
""",
        """            self._is_open = False
""",
        size="driver",
        plan="calls-that-wait-at-the-end",
        breaks=(30,),
    ),
    Mutant(
        "a publish of a thread that has failed is sent again",
        "messages arrive twice without publish_attempts",
        "producer/blocking.py",
        "            except (WouldWait, NotConnected):",
        "            except Exception:",
        size="driver",
        plan="publish-of-a-thread-behind-a-partition",
        breaks=(2,),
    ),
    Mutant(
        "a thread waits for an answer that it has",
        "a call that is answered at once never returns",
        "loop_thread/one_shot.py",
        "if not self.is_answered and lock.acquire(timeout=timeout):",
        "if lock.acquire(timeout=timeout):",
        500,
        "driver",
        breaks=(28,),
    ),
    Mutant(
        "messages are taken for a busy thread while handlers of run wait for them",
        "with run(in_threads=True) beside other threads, a message waits though a handler could take it "
        "(found by a world)",
        "consumer/blocking.py",
        "            with receiver.using_inbox():\n",
        "            if True:\n",
        size="driver",
        plan="handlers-beside-a-busy-thread",
        breaks=(27,),
    ),
    Mutant(
        "a thread does not get messages that were taken for a busy one",
        "a thread that asks for a batch waits, while messages wait for another thread until they time out",
        "consumer/thread_receiver.py",
        "        self._return_taken()\n        self._waiting[request] = None\n",
        "        self._waiting[request] = None\n",
        size="driver",
        plan="messages-for-a-busy-thread",
        breaks=(27,),
    ),
    Mutant(
        "a thread that publishes with its own connection ignores publish_timeout",
        "a program without await hangs for a minute when an nsqd does not answer",
        "producer/blocking.py",
        "self._sends_once = self.options.publish_attempts == 1 and not self.options.publish_timeout\n",
        "self._sends_once = self.options.publish_attempts == 1\n",
        size="driver",
        plan="thread-that-publishes-with-a-timeout",
        breaks=(30,),
    ),
    Mutant(
        "a message that a thread touches keeps its deadline",
        "a handler that watches the time that is left gives up a message that it still holds",
        "consumer/blocking_message.py",
        "        return self.delivery.deadline_ns\n",
        "        return self.received_ns + self.session.msg_timeout_ns\n",
        size="driver",
        breaks=(5,),
    ),
    Mutant(
        "the rest of a command that a thread could not send is dropped as its lease ends",
        "a publish hangs, and the next command becomes a part of it, if an nsqd reads nothing for 100 ms",
        "producer/thread_lease.py",
        "            connection.attach(self._unsent)\n",
        "            connection.attach()\n",
        size="driver",
        plan="unsent-command-of-a-thread",
        breaks=(11,),
    ),
    Mutant(
        "the flag of a wake-up is cleared after the calls that it was for",
        "a call of another thread while the event loop works for one is not begun until a third call comes",
        "loop_thread/loop_client.py",
        """        self._wake_is_due = False
        if not self.end_lease():
            return  # this is called again when the lease can be ended
        queue = self._queue
        for _ in range(len(queue)):
            try:
                function, _ = queue.popleft()
            except IndexError:  # at the end, _refuse_all in other threads empties it, too
                return
            function()
""",
        """        if not self.end_lease():
            return  # this is called again when the lease can be ended
        queue = self._queue
        for _ in range(len(queue)):
            try:
                function, _ = queue.popleft()
            except IndexError:  # at the end, _refuse_all in other threads empties it, too
                return
            function()
        self._wake_is_due = False
""",
        4_000,
        "driver",
        breaks=(30,),
    ),
)
