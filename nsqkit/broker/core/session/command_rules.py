"""Which command may come when; how many words it needs, and what they may be.

The rule it guards: a command is refused before its body is read, by the first of its words that is wrong, and with
nsqd's text (nsqd/protocol_v2.go).
"""

from __future__ import annotations

from typing import Final

from nsqkit.errors import BadChannel, BadTopic, BrokerError, InvalidCommand, NSQError
from nsqkit.wire.commands import milliseconds_ns, parse_number
from nsqkit.wire.identify import NS_PER_MS
from nsqkit.wire.messages import ID_LENGTH
from nsqkit.wire.names import is_valid_name, quote

CONNECTED: Final = 0
SUBSCRIBED: Final = 3
CLOSING: Final = 4
"""The numbers are nsqd's: ``/stats`` shows them as ``state``."""

_ANY = frozenset((CONNECTED, SUBSCRIBED, CLOSING))
_CONSUMING = frozenset((SUBSCRIBED, CLOSING))

ALLOWED_STATES: Final[dict[bytes, frozenset[int]]] = {
    b"IDENTIFY": frozenset((CONNECTED,)),
    b"AUTH": frozenset((CONNECTED,)),
    b"SUB": frozenset((CONNECTED,)),
    b"PUB": _ANY,
    b"MPUB": _ANY,
    b"DPUB": _ANY,
    b"NOP": _ANY,
    b"RDY": _CONSUMING,
    b"FIN": _CONSUMING,
    b"REQ": _CONSUMING,
    b"TOUCH": _CONSUMING,
    b"CLS": frozenset((SUBSCRIBED,)),
}

PARAMS_MIN: Final[dict[bytes, tuple[int, str]]] = {
    b"SUB": (2, "parameters"),
    b"PUB": (1, "parameters"),
    b"MPUB": (1, "parameters"),
    b"DPUB": (2, "parameters"),
    b"FIN": (1, "params"),
    b"REQ": (2, "params"),
    b"TOUCH": (1, "params"),
}
"""How many words a command needs, and what nsqd calls them when they are missing."""

_NAMING = frozenset((b"SUB", b"PUB", b"MPUB", b"DPUB"))
_ANSWERING = frozenset((b"FIN", b"REQ", b"TOUCH"))


class CommandRules:
    """The rules for the commands of one session, and the state that they depend on.

    Args:
        max_req_timeout_ns: the longest delay of a DPUB.
        lacks_tls: the client has to begin with TLS.

    Attributes:
        state: one of CONNECTED, SUBSCRIBED and CLOSING.
        has_heartbeats: the client answers heartbeats.
        lacks_tls: the client has to begin with TLS and has not yet.
    """

    __slots__ = ("_checked", "_max_req_timeout_ns", "has_heartbeats", "lacks_tls", "state")

    def __init__(self, *, max_req_timeout_ns: int, lacks_tls: bool) -> None:
        self.state = CONNECTED
        self.has_heartbeats = True
        self.lacks_tls = lacks_tls
        self._max_req_timeout_ns = max_req_timeout_ns
        self._checked: list[bytes] | None = None  # the last words that were allowed in this state

    def enter(self, state: int) -> None:
        """Change the state."""
        self.state = state
        self._checked = None

    def check(self, verb: bytes, params: list[bytes]) -> None:
        """Refuse a command that is not allowed now, or whose words are wrong.

        Raises:
            BrokerError: what to answer.
        """
        if params is not self._checked:  # a producer repeats the same line many times
            check_state(verb, self.state, has_heartbeats=self.has_heartbeats, lacks_tls=self.lacks_tls)
            check_words(verb, params, max_req_timeout_ns=self._max_req_timeout_ns)
            self._checked = params


def check_state(verb: bytes, state: int, *, has_heartbeats: bool, lacks_tls: bool) -> None:
    """Refuse a command that there is not, or that may not come in this state of a session.

    Args:
        verb: its first word.
        state: one of CONNECTED, SUBSCRIBED and CLOSING.
        has_heartbeats: the client answers heartbeats.
        lacks_tls: the client has to begin with TLS, and has not yet.

    Raises:
        InvalidCommand: what to answer.
    """
    if lacks_tls and verb != b"IDENTIFY":
        raise InvalidCommand(f"cannot {text(verb)} in current state (TLS required)")
    states = ALLOWED_STATES.get(verb)
    if states is None:
        raise InvalidCommand(f"invalid command {text(verb)}")
    if state not in states:
        raise InvalidCommand(f"cannot {verb.decode()} in current state")
    if verb == b"SUB" and not has_heartbeats:
        raise InvalidCommand("cannot SUB with heartbeats disabled")


def check_words(verb: bytes, params: list[bytes], *, max_req_timeout_ns: int) -> None:
    """Refuse a command whose words are wrong.

    Raises:
        BrokerError: what to answer.
    """
    least, words = PARAMS_MIN.get(verb, (0, ""))
    if len(params) < least:
        raise InvalidCommand(f"{verb.decode()} insufficient number of {words}")
    if verb in _NAMING:
        _check_names(verb, params)
        if verb == b"DPUB":
            _check_delay(params[1], max_req_timeout_ns)
    elif verb in _ANSWERING:
        if len(params[0]) != ID_LENGTH:
            raise InvalidCommand("invalid message ID")
    elif verb == b"AUTH" and params:
        raise InvalidCommand("AUTH invalid number of parameters")


def _check_names(verb: bytes, params: list[bytes]) -> None:
    if not is_valid_name(params[0]):
        code_again = "E_BAD_TOPIC " if verb == b"MPUB" else ""  # nsqd says it twice
        raise BadTopic(f"{code_again}{verb.decode()} topic name {quote(params[0])} is not valid")
    if verb == b"SUB" and not is_valid_name(params[1]):
        raise BadChannel(f"SUB channel name {quote(params[1])} is not valid")


def _check_delay(word: bytes, delay_ns_max: int) -> None:
    delay_ms = parse_word(word, "DPUB could not parse timeout")
    if not 0 <= milliseconds_ns(delay_ms) <= delay_ns_max:
        # Here nsqd shows the number as it was read, without a sign.
        raise InvalidCommand(
            f"DPUB timeout {delay_ms % (1 << 64)} out of range 0-{delay_ns_max // NS_PER_MS}"
        )


def parse_word(word: bytes, what: str) -> int:
    """Return the number in ``word``.

    Raises:
        InvalidCommand: there is none; the text begins with ``what``.
    """
    try:
        return parse_number(word)
    except ValueError:
        raise InvalidCommand(f"{what} {text(word)}") from None


def text(word: bytes) -> str:
    """Return a word for an error's text; what is not UTF-8 comes out as it went in."""
    return word.decode("utf-8", "surrogateescape")


def log_text(error: BrokerError) -> str:
    """Return what the log says of a refusal: what the client is told, and the reason that it is not told."""
    cause = error.__cause__
    return f"{error} - {cause}" if isinstance(cause, NSQError) else str(error)
