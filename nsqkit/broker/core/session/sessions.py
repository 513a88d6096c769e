"""The open sessions of a broker, and the things that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import attrs

from nsqkit.broker.core.session.frame_buffer import FrameBuffer
from nsqkit.broker.core.session.nsqd_frame_buffer import NsqdFrameBuffer
from nsqkit.wire.commands import Command, CommandDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from nsqkit.broker.core.disk.group_commit import GroupCommit
    from nsqkit.broker.core.session.command_rules import CommandRules
    from nsqkit.broker.core.topics.registry import Topics
    from nsqkit.broker.core.topics.subscription import Subscription
    from nsqkit.wire.identify import Grant, IdentifyLimits
    from nsqkit.wire.transform import SecureTransform


@attrs.frozen
class AuthorizationRequested:
    """The auth servers have to be queried for ``secret``; the session waits until ``authorize`` is called."""

    secret: bytes = attrs.field(repr=False)


@attrs.frozen
class SessionEnded:
    """The session has ended, for a reason that belongs in the log, or None."""

    reason: str | None


@attrs.frozen
class OutputTaken:
    """The output was full and was taken, so the channel may have messages for the session."""


Event: TypeAlias = AuthorizationRequested | OutputTaken | SessionEnded

S = TypeVar("S")


class Sessions(dict[S, None]):
    """The open sessions of a broker, in the order in which they were opened, and the things that they share.

    Args:
        topics: the broker's topics.
        limits: what IDENTIFY may negotiate.
        grant: the grant of a client that sends no IDENTIFY.
        group_commit: the sessions that wait for a commit; None to answer publishers at once.
        random: decides which messages are sent with a sample rate.

    Attributes:
        make_tls: makes the TLS layer of a session; None if TLS is not offered.
        actions: called with a session and a command, by the command's first word. An action may raise a BrokerError to
            refuse the command, which ends the session; ``Wait`` to be called again after the session has resumed;
            ``Unfinished`` to be called again in the next turn. It may return words that count for its work.
        to_write: those that have output or events.
        by_subscription: those that have subscribed.
    """

    def __init__(
        self,
        topics: Topics,
        limits: IdentifyLimits,
        grant: Grant,
        group_commit: GroupCommit[S] | None,
        random: Random,
    ) -> None:
        super().__init__()
        self.topics = topics
        self.limits = limits
        self.grant = grant
        self.group_commit = group_commit
        self.random = random
        self.make_tls: Callable[[], SecureTransform] | None = None
        self.actions: Mapping[bytes, Callable[[S, Command], int | None]] = {}
        self.to_write: dict[S, None] = {}
        self.by_subscription: dict[Subscription, S] = {}

    def make_buffer(self, rules: CommandRules) -> FrameBuffer:
        """Return the buffer of a session whose commands ``rules`` checks."""
        options = self.topics.options
        decoder = CommandDecoder(rules, max_msg_size=options.max_msg_size, max_body_size=options.max_body_size)
        return NsqdFrameBuffer(decoder) if options.timing == "nsqd" else FrameBuffer(decoder)
