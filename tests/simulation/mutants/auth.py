"""Mutants of grants and secrets."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant

AUTHORIZATION: Final = "broker/core/session/authorization.py"
SESSION: Final = "broker/core/session/session.py"

MUTANTS: Final = (
    Mutant(
        "a grant never expires",
        "a client whose rights were taken away keeps them as long as it stays connected",
        AUTHORIZATION,
        "        return self.state is not None and now_ns > self.state.expires_ns\n",
        "        return False\n",
        breaks=(22,),
    ),
    Mutant(
        "a publish needs no grant",
        "a client publishes to topics that it was not granted",
        SESSION,
        "        if self._batch is None:\n            self._check_authorization(verb, topic_name)\n",
        "",
        breaks=(22,),
    ),
    Mutant(
        "a grant to publish allows to subscribe",
        "a client reads messages that it was not granted",
        "broker/core/session/auth.py",
        '            ("subscribe" if channel else "publish") in self.permissions\n',
        "            bool(self.permissions)\n",
        breaks=(22,),
    ),
    Mutant(
        "a secret is in the text of an event",
        "a log or a trace shows it",
        "broker/core/session/sessions.py",
        "    secret: bytes = attrs.field(repr=False)\n",
        "    secret: bytes\n",
        breaks=(22,),
    ),
    Mutant(
        "the log of commands has their bodies",
        "the log at level debug shows secrets",
        "broker/core/session/command_log.py",
        'b" ".join((command.verb, *command.params))',
        'b" ".join((command.verb, *command.params, *command.bodies))',
        breaks=(22,),
    ),
    Mutant(
        "the text of the options has the addresses of auth servers",
        "it shows the password in an address",
        "broker/core/options.py",
        "        shown=False,  # a URL may contain a password\n",
        "",
        breaks=(22,),
    ),
    Mutant(
        "the text of a command has the body of AUTH",
        "a traceback or a trace shows the secret",
        "wire/commands.py",
        '"…" if self.verb == b"AUTH" else repr(self.bodies)',
        "repr(self.bodies)",
        breaks=(22,),
    ),
    Mutant(
        "a client that waits for an auth server counts as silent",
        "a slow auth server ends the connections of its clients",
        SESSION,
        "        if buffer.is_suspended:\n            heartbeat.received_ns = now_ns",
        "        if False:\n            heartbeat.received_ns = now_ns",
        breaks=(22,),
    ),
    Mutant(
        "the end of a commit sends another request to the auth servers",
        "its answer lets a later command use a grant that has expired",
        SESSION,
        " and (self.authorization is None or not self.authorization.is_requested):",
        ":",
        plan="request-for-a-grant-during-a-commit",
        breaks=(22,),
    ),
)
