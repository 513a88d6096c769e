"""The open sessions of a broker, and the things that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import attrs

from nsqkit.broker.core.pending import Pending
from nsqkit.broker.core.session.frame_buffer import FrameBuffer
from nsqkit.broker.core.session.nsqd_frame_buffer import NsqdFrameBuffer
from nsqkit.wire.commands import CommandDecoder

if TYPE_CHECKING:
    from collections.abc import Callable
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

    secret: bytes


@attrs.frozen
class SessionEnded:
    """The session has ended, for a reason that belongs in the log, or None."""

    reason: str | None


Event: TypeAlias = AuthorizationRequested | SessionEnded

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
        log_commands: write a line in the log for each command.
        to_write: those that have output or events.
        by_subscription: those that have subscribed.
    """

    __slots__ = (
        *("by_subscription", "grant", "group_commit", "limits", "log_commands", "make_tls"),
        *("random", "to_write", "topics"),
    )

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
        self.log_commands = False
        self.to_write: Pending[S] = Pending()
        self.by_subscription: dict[Subscription, S] = {}

    def make_buffer(self, rules: CommandRules) -> FrameBuffer:
        """Return the buffer of a session whose commands ``rules`` checks."""
        options = self.topics.options
        decoder = CommandDecoder(
            rules, max_msg_size=options.max_msg_size, max_body_size=options.max_body_size
        )
        return NsqdFrameBuffer(decoder) if options.timing == "nsqd" else FrameBuffer(decoder)
