"""The options of ``Consumer.run``; invalid values are refused when ``run`` is called."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypedDict

import attrs

from nsqkit.consumer.dead_letter import GivingUp, check_policy, discard
from nsqkit.errors import OptionError
from nsqkit.options.fields import flag, whole

if TYPE_CHECKING:
    from nsqkit.consumer.message import Message


def _check_callable(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not callable(value):
        raise OptionError(f"{attribute.name} is {value!r}; allowed is a function of a message")


def _check_policy(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_policy(value)


class HandlerKeywords(TypedDict, total=False):
    """The options of ``HandlerOptions`` as keyword arguments."""

    concurrency: int
    key: Callable[[Message], Hashable] | None
    in_threads: bool
    auto_touch: bool
    cancel_at_timeout: bool
    giving_up: GivingUp


@attrs.frozen(kw_only=True)
class HandlerOptions:
    """The options of one call of ``run``.

    Attributes:
        concurrency: handlers that run at a time; 1.
        key: a function from a message to its key; messages of one key are handled one after the other, in the order in
            which they were received. None: any handler takes any message.
        in_threads: call the handler, a plain function, in ``concurrency`` worker threads.
        auto_touch: touch a message while its handler runs, until nsqd's ``--max-msg-timeout`` after its delivery.
        cancel_at_timeout: cancel the handler, an async function, when its message has timed out.
        giving_up: called with a message on which the handler has failed at its last attempt (``max_attempts``), and
            with a ``GivenUp`` that has the reason; a function of the message alone is allowed. Afterwards the message
            is finished.
    """

    concurrency: int = whole(1, 1, 1_000_000)
    key: Callable[[Message], Hashable] | None = attrs.field(
        default=None, validator=attrs.validators.optional(_check_callable)
    )
    in_threads: bool = flag(False)
    auto_touch: bool = flag(False)
    cancel_at_timeout: bool = flag(False)
    giving_up: GivingUp = attrs.field(default=discard, validator=_check_policy)

    def __attrs_post_init__(self) -> None:
        if self.in_threads and self.cancel_at_timeout:
            raise OptionError("cancel_at_timeout is True; allowed is False with in_threads: no thread can be cancelled")
