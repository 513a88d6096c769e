"""Mutants of the tasks that wait for auth servers, in brokers and in clients."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

SERVICES: Final = "broker/external_services.py"

MUTANTS: Final = (
    Mutant(
        "each heartbeat prolongs a handshake whose AUTH has no answer",
        "a client stays at an nsqd whose auth server hangs, and reports no error",
        "client/connection.py",
        "self._limit_handshake(self._dial_timeout_ns + auth_ns)",
        "self._limit_handshake(now_ns - self._dialled_ns + self._dial_timeout_ns + auth_ns)",
        size="driver",
        plan="handshake-at-a-hanging-auth-server",
        breaks=(28,),
    ),
    Mutant(
        "a grant is used when something else happens",
        "a client waits for the answer to AUTH, or to a publish, until the next heartbeat",
        SERVICES,
        "        session.authorize(state)\n        nsqd.process_changes()\n",
        "        session.authorize(state)\n",
        size="driver",
        plan="grant-that-nothing-follows",
        breaks=(27,),
    ),
    Mutant(
        "a failure of the auth servers is not passed to the session",
        "a client waits for ever for the answer to its command",
        SERVICES,
        "            state = error\n            if session.ended:",
        "            if not session.ended:\n                return\n            if True:",
        500,
        "driver",
        breaks=(11,),
    ),
    Mutant(
        "the answer to AUTH has no time of its own",
        "with an auth server that takes longer than dial_timeout no client connects",
        "client/connection.py",
        "        elif self._handshake_deadline_ns is not None and session.is_authenticating:\n",
        "        elif self._handshake_deadline_ns is not None and session.is_closing:\n",
        500,
        "driver",
        breaks=(28,),
    ),
    Mutant(
        "a heartbeat is taken for the answer to AUTH",
        "with an auth server that is slower than a heartbeat no client connects",
        "client/session.py",
        "if self.state is not State.IDENTIFYING and self._answer_heartbeat(frame):",
        "if self.state is State.SUBSCRIBING and self._answer_heartbeat(frame):",
        500,
        "driver",
        breaks=(11,),
    ),
    Mutant(
        "a request to an auth server has no limit",
        "clients of a broker wait as long as its auth server hangs",
        "broker/auth.py",
        "request_timeout=options.http_client_request_timeout_ns / NS_PER_S or None,",
        "request_timeout=None,",
        500,
        "driver",
        breaks=(11,),
    ),
    Mutant(
        "a failed request to the last auth server is the last one",
        "with two auth servers of which one is down, half of the clients are refused",
        "broker/auth.py",
        "    for address in addresses[first:] + addresses[:first]:\n",
        "    for address in addresses[first:]:\n",
        size="driver",
        breaks=(11,),
    ),
)
