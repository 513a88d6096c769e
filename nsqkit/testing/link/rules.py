"""The vocabulary of faults: a rule is a selection of items, and an action.

A rule is checked when it is made, so that a rule that can never apply is an error at the line that wrote it.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import attrs

from nsqkit.errors import OptionError
from nsqkit.testing.link.actions import ANSWERED, Action, DropAnswer
from nsqkit.testing.link.items import COMMANDS, FRAMES, Direction
from nsqkit.testing.link.limits import LimitedRule

if TYPE_CHECKING:
    from nsqkit.testing.link.items import Connection, Item

NAMES: Final = (*COMMANDS, *FRAMES)

_NAMES_TOPIC: Final = ("PUB", "MPUB", "DPUB", "SUB")
_HAS_SUBSCRIPTION: Final = ("RDY", "FIN", "REQ", "TOUCH", "CLS", "MESSAGE", "CLOSE_WAIT")
WITH_TOPIC: Final = (*_NAMES_TOPIC, *_HAS_SUBSCRIPTION)
"""Items with a topic: of the command itself, or of the subscription of its connection."""
WITH_CHANNEL: Final = ("SUB", *_HAS_SUBSCRIPTION)


def _direction(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return Direction(value)
        except ValueError:
            pass
    return value


def _check_text(rule: object, field: attrs.Attribute[Any], value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise OptionError(f"{field.name} is {value!r}; allowed is None or a text that is not empty")


def check_direction(rule: object, field: attrs.Attribute[Any], value: object) -> None:
    """Raise OptionError if a value is neither a direction nor None."""
    if value is not None and not isinstance(value, Direction):
        raise OptionError(f"direction is {value!r}; allowed are None, 'to_broker' and 'to_client'")


def _check_command(rule: object, field: attrs.Attribute[Any], value: object) -> None:
    if value is None or value in NAMES:
        return
    similar = get_close_matches(str(value).upper(), NAMES, n=1)
    hint = f"; did you mean {similar[0]!r}?" if similar else ""
    raise OptionError(f"command is {value!r}{hint or '; allowed are None, ' + ', '.join(NAMES)}")


@attrs.frozen(kw_only=True)
class Rule(LimitedRule):
    """A selection of items, and an action.

    Attributes:
        action: their treatment.
        direction: ``to_broker`` or ``to_client``; None for both.
        command: the name of a command or of a frame (``Item.name``); None for all.
        topic: the topic of a publish or a SUB, or of the subscription of the connection; None for any.
        channel: the channel of a SUB, or of the subscription; None for any.
        client: a client id or an address; None for any.

    Raises:
        OptionError: a value is not allowed, or no item can ever be selected.
    """

    action: Action
    direction: Direction | None = attrs.field(default=None, converter=_direction, validator=check_direction)
    command: str | None = attrs.field(default=None, validator=_check_command)
    topic: str | None = attrs.field(default=None, validator=_check_text)
    channel: str | None = attrs.field(default=None, validator=_check_text)
    client: str | None = attrs.field(default=None, validator=_check_text)

    def __attrs_post_init__(self) -> None:
        names = NAMES if self.action.names is None else self.action.names
        if not names:
            for selector in ("direction", "command", "topic", "channel"):
                if getattr(self, selector) is not None:
                    raise OptionError(f"{self.fault} applies to new connections; allowed is no {selector}")
            return
        if self.command is not None:
            if self.command not in names:
                reason = "has no answer" if isinstance(self.action, DropAnswer) and self.command in COMMANDS else ""
                raise OptionError(
                    f"{self.fault} never applies to {self.command}{', which ' + reason if reason else ''};"
                    f" allowed are {', '.join(names)}"
                )
            names = (self.command,)
        for option, value, having in (("topic", self.topic, WITH_TOPIC), ("channel", self.channel, WITH_CHANNEL)):
            if value is not None:
                if not set(names) & set(having):
                    raise OptionError(
                        f"{option} is {value!r}, but {', '.join(names)} has no {option};"
                        f" these have one: {', '.join(having)}"
                    )
                names = tuple(name for name in names if name in having)
        if self.direction is not None and not any(direction_of(name) is self.direction for name in names):
            raise OptionError(
                f"direction is {self.direction.value!r}, but {', '.join(names)} goes {self.direction.opposite.value}"
            )

    def selects(self, direction: Direction, item: Item, connection: Connection) -> bool:
        """Return whether an item, of which at least the first line or the type has come, is one of the selection."""
        return (
            (self.direction is None or self.direction is direction)
            and (self.command is None or self.command == item.name)
            and (self.action.names is None or item.name in self.action.names)
            and (self.client is None or self.client in (connection.client_id, connection.address))
            and (self.topic is None or self.topic == topic_of(item, connection))
            and (self.channel is None or self.channel == channel_of(item, connection))
        )

    def covers(self, other: Rule) -> bool:
        """Return whether every item that ``other`` selects is selected by this rule, too."""
        if self.action.slot != other.action.slot or not _covers_names(self.action.names, other):
            return False
        pairs = (
            (self.direction, other.direction or (direction_of(other.command) if other.command else None)),
            (self.command, other.command),
            (self.topic, other.topic),
            (self.channel, other.channel),
            (self.client, other.client),
        )
        return all(mine is None or mine == its for mine, its in pairs)


def _covers_names(names: tuple[str, ...] | None, other: Rule) -> bool:
    if names is None:
        return True
    its = (other.command,) if other.command else other.action.names
    return its is not None and set(its) <= set(names)


def direction_of(name: str) -> Direction:
    """Return the direction of the items of a name."""
    return Direction.TO_BROKER if name in COMMANDS else Direction.TO_CLIENT


def topic_of(item: Item, connection: Connection) -> str | None:
    """Return the topic of an item; None if it has none."""
    if item.name in _NAMES_TOPIC:
        return _word(item, 0)
    return connection.topic if item.name in _HAS_SUBSCRIPTION else None


def channel_of(item: Item, connection: Connection) -> str | None:
    """Return the channel of an item; None if it has none."""
    if item.name == "SUB":
        return _word(item, 1)
    return connection.channel if item.name in _HAS_SUBSCRIPTION else None


def _word(item: Item, number: int) -> str | None:
    words = item.words
    return words[number].decode("utf-8", "replace") if number < len(words) else None


def is_answer(item: Item) -> bool:
    """Return whether a frame is the answer to one of ``ANSWERED``: no heartbeat, message or failed FIN, REQ, TOUCH."""
    if item.name == "ERROR":
        return not item.data.startswith((b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"), 8)
    return item.name in ("OK", "RESPONSE", "CLOSE_WAIT")


def has_answer(item: Item) -> bool:
    """Return whether a command has an answer when it succeeds."""
    return item.name in ANSWERED
