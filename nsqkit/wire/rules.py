"""The interface between a decoder of commands and the rules of the session that receives them.

A broker refuses a command by its line, before it reads the body (docs/decisions/0005). The session updates the state in
its rules, and the decoder never calls the session.
"""

from __future__ import annotations

from typing import Protocol


class Rules(Protocol):
    """Which commands are allowed in the present state of a session."""

    @property
    def state(self) -> object:
        """The state: while it is the same object, a command that was allowed once is not checked again."""

    def check(self, verb: bytes, params: list[bytes]) -> None:
        """Return if a command is allowed.

        Raises:
            BrokerError: refused; the error to answer.
        """
