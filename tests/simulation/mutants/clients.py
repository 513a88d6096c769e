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
)
