"""Hypothesis strategies for NSQ: names, bodies, and messages as ``NsqdServer.inject`` takes them.

Hypothesis is not installed with nsqkit.
"""

from __future__ import annotations

from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from nsqkit.wire.messages import ATTEMPTS_MAX
from nsqkit.wire.names import EPHEMERAL_SUFFIX, NAME_LENGTH_MAX

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_NAME_CHARACTERS = ascii_letters + digits + "._-"
_SUFFIX = EPHEMERAL_SUFFIX.decode()
_TIMESTAMP_NS_MAX = 4_102_444_800 * 10**9  # the year 2100


def names(*, ephemeral: bool | None = None) -> SearchStrategy[str]:
    """Valid names of topics and channels.

    Args:
        ephemeral: True for names that end in ``#ephemeral``, False for others, None for both.
    """
    plain = st.text(_NAME_CHARACTERS, min_size=1, max_size=NAME_LENGTH_MAX)
    short = st.text(_NAME_CHARACTERS, min_size=1, max_size=NAME_LENGTH_MAX - len(_SUFFIX))
    temporary = short.map(lambda name: name + _SUFFIX)
    if ephemeral is None:
        return plain | temporary
    return temporary if ephemeral else plain


def bodies(max_size: int = 1000) -> SearchStrategy[bytes]:
    """Bodies of 1 to ``max_size`` bytes; some look like parts of the protocol."""
    protocol = st.sampled_from((b"\n", b"FIN 0123456789abcdef\n", b"_heartbeat_", b"\0\0\0\6\0\0\0\0OK", b"\xff" * 8))
    return st.binary(min_size=1, max_size=max_size) | protocol.filter(lambda body: len(body) <= max_size)


def attempts() -> SearchStrategy[int]:
    """Numbers of deliveries, 1 to 65535: mostly small ones, and those before the wrap of nsqd's counter."""
    return st.integers(1, 10) | st.integers(1, ATTEMPTS_MAX) | st.sampled_from((ATTEMPTS_MAX - 1, ATTEMPTS_MAX))


def message_ids() -> SearchStrategy[str]:
    """Message ids: 16 hexadecimal digits in lower case."""
    return st.text("0123456789abcdef", min_size=16, max_size=16)


def timestamps_ns() -> SearchStrategy[int]:
    """Times of publication, ns since the Unix epoch, until the year 2100."""
    return st.integers(0, _TIMESTAMP_NS_MAX)


def messages(body: SearchStrategy[bytes] | None = None) -> SearchStrategy[dict[str, Any]]:
    """Keyword arguments of ``NsqdServer.inject``: ``body``, and some of ``attempts`` and ``timestamp``.

    Args:
        body: the bodies; by default any.
    """
    return st.fixed_dictionaries(
        {"body": bodies() if body is None else body},
        optional={"attempts": attempts(), "timestamp": timestamps_ns()},
    )
