"""Mutants of a publish that goes on to another nsqd, and of what an acknowledged one has on disk."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

MUTANTS: Final = (
    Mutant(
        "another attempt avoids only the nsqd that was tried last",
        "a publish alternates between two nsqds that fail, although a third would take it",
        "producer/publisher.py",
        "                tried = (*tried, connection)\n",
        "                tried = (connection,)\n",
        size="driver",
        plan="attempts-at-three-nsqds",
        breaks=(34,),
    ),
    Mutant(
        "names that change while they are written count as written",
        "a topic that is created then is not named on disk, and its messages are not found after a kill",
        "broker/persistence.py",
        "            self._saved_revision = revision\n",
        "            self._saved_revision = broker.changes.revision\n",
        500,
        "driver",
        breaks=(15, 17),
    ),
    Mutant(
        "fsync: a publish over HTTP is acknowledged although its commit has failed",
        "a publisher takes a message for safe that is not on disk",
        "broker/http_api.py",
        '    if not await nsqd.committed():\n        raise HTTPError(503, "EXITING")\n',
        "    await nsqd.committed()\n",
        500,
        "driver",
        breaks=(15,),
    ),
    Mutant(
        "HTTP: the attempts of a publish move on with those of others",
        "with several publishes at a time and one nsqd down, all attempts of one go to that nsqd",
        "producer/http_producer.py",
        "            daemon = self._daemons[(first + attempt - 1) % len(self._daemons)]\n",
        "            daemon = self._daemons[(self._next - 1) % len(self._daemons)]\n"
        "            self._next += attempt < self.options.publish_attempts\n",
        500,
        "driver",
        breaks=(34,),
    ),
    Mutant(
        "a publish that is cancelled as its answer arrives keeps its part of the send window",
        "with max_outstanding_bytes a producer publishes less and less, and at last nothing",
        "producer/publisher.py",
        "                    if not receipt.is_answered and not session.withdraw(receipt):\n",
        "                    if not session.withdraw(receipt):\n",
        500,
        "driver",
        breaks=(24,),
    ),
    Mutant(
        "a later refusal hides that a publish may have arrived",
        "a program publishes a message once more, since the error says that it is certainly not there",
        "producer/publisher.py",
        "                    failure = failure if isinstance(failure, ConnectionLost) else error\n",
        "                    failure = error\n",
        3_000,
        "driver",
        breaks=(2,),
    ),
    Mutant(
        "a stop does not wait for the messages of a batch that was refused",
        "publishes that were accepted just before the end are lost because of another one",
        "producer/publisher.py",
        "        while self._refused or any(",
        "        while any(",
        1_000,
        "driver",
        breaks=(30,),
    ),
    Mutant(
        "a publish that each nsqd has refused once waits for another nsqd",
        "a publish with attempts left fails after connect_timeout, though nsqds are ready",
        "producer/publisher.py",
        "        chosen = self._policy.choose(self.connections, key, tried)\n"
        "        return self._policy.choose(self.connections, key) if chosen is None and tried else chosen\n",
        "        return self._policy.choose(self.connections, key, tried)\n",
        size="driver",
        plan="attempts-at-two-nsqds",
        breaks=(27,),
    ),
    Mutant(
        "HTTP: a deferral is limited by the message timeout",
        "/pub refuses a delay that --max-req-timeout allows",
        "broker/http_api.py",
        '_delay_ns(query.get("defer"), nsqd.options.max_req_timeout_ns)',
        '_delay_ns(query.get("defer"), nsqd.options.max_msg_timeout_ns)',
        size="driver",
        plan="deferral-above-the-message-timeout",
        breaks=(11,),
    ),
)
