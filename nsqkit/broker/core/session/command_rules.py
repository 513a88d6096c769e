"""The states of a session, and the commands that are allowed in each of them, with their words.

A command is refused before its body is read, by the first of its words that is wrong, and with nsqd's text
(nsqd/protocol_v2.go): the state first, then the number of words, then each word.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from nsqkit.errors import BadChannel, BadTopic, BrokerError, InvalidCommand, NSQError
from nsqkit.wire.commands import milliseconds_ns, parse_number
from nsqkit.wire.identify import NS_PER_MS
from nsqkit.wire.messages import ID_LENGTH
from nsqkit.wire.names import is_valid_name, quote


class State(Enum):
    """The state of a session."""

    INIT = "init"
    IDENTIFIED = "identified"
    SUBSCRIBED = "subscribed"
    CLOSING = "closing"
    """The consumer has sent CLS: it gets no more messages, and still answers those that it holds."""
    ENDED = "ended"

    @property
    def number(self) -> int:
        """Nsqd's number of the state, in ``/stats``."""
        return _NUMBERS[self]


_NUMBERS: Final = {
    State.INIT: 0,
    State.IDENTIFIED: 0,
    State.SUBSCRIBED: 3,
    State.CLOSING: 4,
    State.ENDED: 1,
}

_ANY_STATE: Final = ("PUB", "MPUB", "DPUB", "NOP")
_CONSUMING: Final = ("RDY", "FIN", "REQ", "TOUCH")

TRANSITIONS: Final[dict[State, dict[str, State]]] = {
    State.INIT: {
        "IDENTIFY": State.IDENTIFIED,
        "AUTH": State.INIT,
        "SUB": State.SUBSCRIBED,
        **dict.fromkeys(_ANY_STATE, State.INIT),
        "end": State.ENDED,
    },
    State.IDENTIFIED: {
        "IDENTIFY": State.IDENTIFIED,
        "AUTH": State.IDENTIFIED,
        "SUB": State.SUBSCRIBED,
        **dict.fromkeys(_ANY_STATE, State.IDENTIFIED),
        "end": State.ENDED,
    },
    State.SUBSCRIBED: {
        **dict.fromkeys(_ANY_STATE + _CONSUMING, State.SUBSCRIBED),
        "CLS": State.CLOSING,
        "end": State.ENDED,
    },
    State.CLOSING: {
        **dict.fromkeys(_ANY_STATE + _CONSUMING, State.CLOSING),
        "end": State.ENDED,
    },
    State.ENDED: {},
}
"""The next state after each command that is allowed in a state, and after the end of the session."""

_ALLOWED: Final = {
    state: frozenset(event.encode() for event in events if event != "end") for state, events in TRANSITIONS.items()
}
_VERBS: Final = frozenset().union(*_ALLOWED.values())

PARAMS_MIN: Final[dict[bytes, tuple[int, str]]] = {
    b"SUB": (2, "parameters"),
    b"PUB": (1, "parameters"),
    b"MPUB": (1, "parameters"),
    b"DPUB": (2, "parameters"),
    b"FIN": (1, "params"),
    b"REQ": (2, "params"),
    b"TOUCH": (1, "params"),
}
"""The number of words that a command needs, and nsqd's name for them when they are missing."""

_NAMING = frozenset((b"SUB", b"PUB", b"MPUB", b"DPUB"))
_ANSWERING = frozenset((b"FIN", b"REQ", b"TOUCH"))


class CommandRules:
    """The state of one session, and the rules for its commands.

    Args:
        max_req_timeout_ns: the longest delay of a DPUB.
        lacks_tls: the client has to begin with TLS.

    Attributes:
        state: changed by ``move`` only.
        has_heartbeats: the client answers heartbeats.
        lacks_tls: the client has to begin with TLS and has not yet.
    """

    __slots__ = ("_allowed", "_max_req_timeout_ns", "has_heartbeats", "lacks_tls", "state")

    def __init__(self, *, max_req_timeout_ns: int, lacks_tls: bool) -> None:
        self.state = State.INIT
        self._allowed = _ALLOWED[State.INIT]
        self.has_heartbeats = True
        self.lacks_tls = lacks_tls
        self._max_req_timeout_ns = max_req_timeout_ns

    def move(self, event: str) -> None:
        """Change to the state that follows a command, or the end."""
        self.state = TRANSITIONS[self.state][event]
        self._allowed = _ALLOWED[self.state]

    def check(self, verb: bytes, params: list[bytes]) -> None:
        """Refuse a command that is not allowed now, or whose words are wrong.

        Raises:
            BrokerError: the error to answer.
        """
        if verb not in self._allowed or self.lacks_tls or verb == b"SUB":
            self._check_state(verb)
        check_words(verb, params, max_req_timeout_ns=self._max_req_timeout_ns)

    def _check_state(self, verb: bytes) -> None:
        if self.lacks_tls and verb != b"IDENTIFY":
            raise InvalidCommand(f"cannot {text(verb)} in current state (TLS required)")
        if verb not in _VERBS:
            raise InvalidCommand(f"invalid command {text(verb)}")
        if verb not in self._allowed:
            raise InvalidCommand(f"cannot {verb.decode()} in current state")
        if verb == b"SUB" and not self.has_heartbeats:
            raise InvalidCommand("cannot SUB with heartbeats disabled")


def check_words(verb: bytes, params: list[bytes], *, max_req_timeout_ns: int) -> None:
    """Refuse a command whose words are wrong.

    Raises:
        BrokerError: the error to answer.
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
        code_again = "E_BAD_TOPIC " if verb == b"MPUB" else ""  # nsqd repeats the code
        raise BadTopic(f"{code_again}{verb.decode()} topic name {quote(params[0])} is not valid")
    if verb == b"SUB" and not is_valid_name(params[1]):
        raise BadChannel(f"SUB channel name {quote(params[1])} is not valid")


def _check_delay(word: bytes, delay_ns_max: int) -> None:
    delay_ms = parse_word(word, "DPUB could not parse timeout")
    if not 0 <= milliseconds_ns(delay_ms) <= delay_ns_max:
        # Here nsqd shows the number as it was read, without a sign.
        raise InvalidCommand(f"DPUB timeout {delay_ms % (1 << 64)} out of range 0-{delay_ns_max // NS_PER_MS}")


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
    """Decode a word for the text of an error; bytes that are not UTF-8 are encoded again as they were."""
    return word.decode("utf-8", "surrogateescape")


def log_text(error: BrokerError) -> str:
    """Return the log's text of a refusal: the error that the client gets, and the reason, which it does not get."""
    cause = error.__cause__
    return f"{error} - {cause}" if isinstance(cause, NSQError) else str(error)
