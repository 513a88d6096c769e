"""The faults of one server: rules for the items and connections of all its links.

A rule belongs to the whole server: its counts are those of all connections.

Rules with a command, a topic or a channel need items: they do not apply to a connection with TLS or compression, whose
bytes cannot be divided. The other rules apply there to the bytes of each read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from nsqkit.errors import OptionError
from nsqkit.options.checks import make_options, take_seconds
from nsqkit.testing.link import actions
from nsqkit.testing.link.items import Direction
from nsqkit.testing.link.limits import CountedRule, CountedRules
from nsqkit.testing.link.rules import Rule
from nsqkit.wire.error_codes import BROKER_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from nsqkit.testing.link.actions import Action
    from nsqkit.testing.link.items import Connection, Item

NS_PER_S: Final = 1_000_000_000
INT32_MAX: Final = (1 << 31) - 1
SIZE_MAX: Final = 1 << 28
"""Bytes of an item that ``oversize`` makes, at most."""


class Limits(TypedDict, total=False):
    """When a rule applies to the items that it selects (``Rule``)."""

    client: str | None
    times: int | None
    after: int
    probability: float


class CommandSelector(Limits, total=False):
    """The selection of commands, or of messages (``Rule``)."""

    topic: str | None
    channel: str | None


class Selector(CommandSelector, total=False):
    """The selection of items (``Rule``)."""

    direction: Direction | str | None
    command: str | None


class Fault(CountedRule[Rule]):
    """A rule of a server, for ``with``: it is removed at the end."""

    def applies(self, direction: Direction, item: Item, connection: Connection) -> bool:
        """Return whether the rule applies to the next item, and count it."""
        return self.rule.selects(direction, item, connection) and self.is_hit()

    def applies_to_new(self, connection: Connection) -> bool:
        """Return whether the rule applies to a new connection, and count it."""
        return self.rule.client in (None, connection.address) and self.is_hit()


class Faults(CountedRules[Fault]):
    """The rules of one server; each method adds one and returns its ``Fault``.

    The keywords of most methods select items (``nsqkit.testing.link.rules.Rule``): ``direction``, ``command``,
    ``topic``, ``channel``, ``client``, ``times``, ``after`` and ``probability``. Of several rules that
    select the same item, the one that was added first applies; delay, bandwidth and slices apply besides.

    Args:
        seed: of all random decisions.

    Attributes:
        seed: the same.
        active: the rules that can still apply, by number in the order of adding.
        on_refuse: the server's function that is called, in the thread of the test, when ``refuses`` may have changed.

    Raises:
        OptionError: (every method) a value is not allowed, the rule can never apply, or an earlier rule applies to
            every item that this one selects.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.on_refuse: Callable[[], None] = lambda: None

    def remove(self, fault: Fault) -> None:
        """Remove a rule; do nothing if it was removed."""
        was_removed = fault.is_removed
        super().remove(fault)
        if fault.rule.fault == "refuse" and not was_removed:
            self.on_refuse()

    @property
    def refuses(self) -> bool:
        """True while the server is to have no open port."""
        return any(isinstance(fault.rule.action, actions.Refuse) for fault in [*self.active.values()])

    # ---- new connections ---------------------------------------------------------------------------------------------

    def refuse(self) -> Fault:
        """Close the port: connections are refused. Open connections stay."""
        return self._add("refuse", actions.Refuse(), {})

    def close_on_accept(self, **limits: Unpack[Limits]) -> Fault:
        """Accept connections, and close each at once."""
        return self._add("close_on_accept", actions.CloseOnAccept(), limits)

    def silence(self, **limits: Unpack[Limits]) -> Fault:
        """Accept connections, and never answer.

        Such a connection stays silent while the fault is not removed, and is reset when something is sent on it later.
        """
        return self._add("silence", actions.Silence(), limits)

    # ---- open connections --------------------------------------------------------------------------------------------

    def reset(self, **selector: Unpack[Selector]) -> Fault:
        """Reset the connection instead of passing the item on."""
        return self._add("reset", actions.Reset(), selector)

    def close_at(self, byte: int, *, frame: int = 1, **selector: Unpack[Selector]) -> Fault:
        """Close a connection after a byte of a selected item, once.

        Args:
            byte: the number of bytes of the item that are passed on; 0 for none.
            frame: the number of the item among the selected ones; 1 for the first.
            selector: the items; ``times`` and ``after`` are given by ``frame``.
        """
        _check_number("byte", byte, 0, INT32_MAX)
        _check_number("frame", frame, 1, INT32_MAX)
        for name in ("times", "after"):
            if name in selector:
                raise OptionError(f"{name} is not allowed for close_at; frame={frame} selects one item")
        return self._add("close_at", actions.CloseAt(byte), {**selector, "times": 1, "after": frame - 1})

    def half_open(
        self,
        direction: Direction | str | None = None,
        *,
        command: str | None = None,
        **selector: Unpack[CommandSelector],
    ) -> Fault:
        """Lose everything that is sent from now on, as if the other side had no power; the connection stays open.

        When the fault is removed, a connection that is affected is reset as soon as something is sent on it.

        Args:
            direction: ``to_broker`` or ``to_client`` to lose one direction only; None for both.
            command: the item with which it begins, which is lost, too, in a direction that is lost; None for any.
            selector: the items with which it begins.
        """
        rule = Rule(fault="half_open", action=actions.HalfOpen(None), direction=direction)
        return self._add("half_open", actions.HalfOpen(rule.direction), {**selector, "command": command})

    # ---- bytes -------------------------------------------------------------------------------------------------------

    def delay(self, seconds: float | timedelta, **selector: Unpack[Selector]) -> Fault:
        """Pass items on after a time; those after them in the same direction wait, too."""
        return self._add("delay", actions.Delay(_take_ns("seconds", seconds, least=1e-9)), selector)

    def bandwidth(self, bytes_per_second: int, **selector: Unpack[Selector]) -> Fault:
        """Pass items on at a limited rate, which each direction of each connection has for itself."""
        _check_number("bytes_per_second", bytes_per_second, 1, INT32_MAX)
        return self._add("bandwidth", actions.Bandwidth(bytes_per_second), selector)

    def slices(self, size: int, **selector: Unpack[Selector]) -> Fault:
        """Pass items on in writes of at most ``size`` bytes."""
        _check_number("size", size, 1, INT32_MAX)
        return self._add("slices", actions.Slices(size), selector)

    def garbage(self, data: bytes, **selector: Unpack[Selector]) -> Fault:
        """Pass on ``data`` instead of the item."""
        if not isinstance(data, bytes) or not data:
            raise OptionError(f"data is {data!r}; allowed are bytes, at least one; drop() passes nothing on")
        return self._add("garbage", actions.Garbage(data), selector)

    def wrong_length(self, length: int, **selector: Unpack[Selector]) -> Fault:
        """Put ``length`` in place of the length of a frame, or of the body of a command; the rest stays."""
        _check_number("length", length, -INT32_MAX - 1, INT32_MAX)
        return self._add("wrong_length", actions.WrongLength(length), selector)

    def wrong_type(self, frame_type: int, **selector: Unpack[Selector]) -> Fault:
        """Put ``frame_type`` in place of the type of a frame: 0 is a response, 1 an error, 2 a message."""
        _check_number("frame_type", frame_type, -INT32_MAX - 1, INT32_MAX)
        return self._add("wrong_type", actions.WrongType(frame_type), selector)

    def oversize(self, size: int, **selector: Unpack[Selector]) -> Fault:
        """Add zeros to a frame, or to the body of a command, until its length is ``size``; a longer one stays."""
        _check_number("size", size, 1, SIZE_MAX)
        return self._add("oversize", actions.Oversize(size), selector)

    # ---- protocol ----------------------------------------------------------------------------------------------------

    def error(self, code: str, *, command: str, description: str = "", **selector: Unpack[CommandSelector]) -> Fault:
        """Answer a command with an error, in the order of the answers; the broker does not get the command.

        After a fatal error the connection is closed, as by nsqd.

        Args:
            code: such as ``"E_PUB_FAILED"``.
            command: such as ``"PUB"``.
            description: the text after the code; by default it names the command and the fault.
            selector: the commands.
        """
        error = BROKER_ERRORS.get(code.encode())
        if error is None:
            raise OptionError(f"code is {code!r}; allowed are {', '.join(each.decode() for each in BROKER_ERRORS)}")
        text = description or f"{command} failed by faults.error()"
        return self._add("error", actions.Refusal(error(text)), {**selector, "command": command})

    def drop(self, **selector: Unpack[Selector]) -> Fault:
        """Do not pass the item on."""
        return self._add("drop", actions.Drop(), selector)

    def drop_answer(self, *, command: str | None = None, **selector: Unpack[CommandSelector]) -> Fault:
        """Pass a command on, but not its answer; the keywords select commands."""
        return self._add("drop_answer", actions.DropAnswer(), {**selector, "command": command})

    def duplicate(self, **selector: Unpack[CommandSelector]) -> Fault:
        """Deliver a message twice, with the same attempts."""
        return self._add("duplicate", actions.Duplicate(), selector)

    def redeliver(self, seconds: float | timedelta = 0.0, **selector: Unpack[CommandSelector]) -> Fault:
        """Deliver a message again after ``seconds``, with attempts one higher, although its timeout has not passed."""
        return self._add("redeliver", actions.Redeliver(_take_ns("seconds", seconds)), selector)

    def _add(self, name: str, action: Action, selector: Any) -> Fault:
        rule = make_options(Rule, {**selector, "fault": name, "action": action})
        fault = self._put(Fault, rule)
        if name == "refuse":
            self.on_refuse()
        return fault


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise OptionError(f"{name} is {value!r}; allowed is a whole number from {least} to {most}")


def _take_ns(name: str, value: object, *, least: float = 0.0) -> int:
    return round(take_seconds(name, value, least=least) * NS_PER_S)
