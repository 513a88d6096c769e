"""A client that sends an nsqlookupd what no nsqd sends: each refusal has nsqlookupd's code, and changes nothing."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING, Final

from nsqkit.lookupd.session import Session
from nsqkit.wire.lookup import MAGIC_V1, OK, AnswerDecoder
from tests.simulation.broken import conclude

if TYPE_CHECKING:
    from nsqkit.lookupd.registry import Registry
    from nsqkit.wire.lookup import LookupdInfo

NODE: Final = b'{"broadcast_address":"raw","hostname":"raw","tcp_port":1,"http_port":2,"version":"1"}'
IDENTIFY: Final = b"IDENTIFY\n" + pack(">i", len(NODE)) + NODE

ITEMS: Final[dict[str, tuple[bytes, tuple[bytes, ...]]]] = {
    "PING": (b"PING\nPING\nPING\nPING\nPING\n", (OK, OK, OK, OK, OK)),
    "nothing": (b"", ()),
    "IDENTIFY": (IDENTIFY + b"PING\n", (b"{", OK)),
    "IDENTIFY twice": (IDENTIFY + IDENTIFY, (b"{", b"E_INVALID")),
    "IDENTIFY garbage": (b"IDENTIFY\n" + pack(">i", 2) + b"{]", (b"E_BAD_BODY",)),
    "IDENTIFY in part": (IDENTIFY[:40], (b"E_BAD_BODY",)),
    "REGISTER first": (b"REGISTER t\n", (b"E_INVALID",)),
    "UNREGISTER first": (b"PING\nUNREGISTER t\n", (OK, b"E_INVALID")),
    "REGISTER nothing": (IDENTIFY + b"REGISTER\n", (b"{", b"E_INVALID")),
    "REGISTER bad topic": (IDENTIFY + b"REGISTER t!\n", (b"{", b"E_BAD_TOPIC")),
    "REGISTER bad channel": (IDENTIFY + b"REGISTER t c!\n", (b"{", b"E_BAD_CHANNEL")),
    "UNREGISTER unknown": (IDENTIFY + b"UNREGISTER none\nUNREGISTER none none\n", (b"{", OK, OK)),
    "unknown": (b"HELLO\n", (b"E_INVALID",)),
    "long line": (b"x" * 20_000, ()),
}
"""What the client sends after the magic, and how the answers begin."""


def send_raw(registry: Registry, info: LookupdInfo, what: str, now_ns: int) -> None:
    """Send one item, and end the connection; check the answers, and that no broker is left.

    The end comes after the answers, and on another connection before them.
    """
    for is_early in (False, True):
        _send_raw(registry, info, what, now_ns, is_early=is_early)


def _send_raw(registry: Registry, info: LookupdInfo, what: str, now_ns: int, *, is_early: bool) -> None:
    data, expected = ITEMS[what]
    peers = registry.active_peers(now_ns)
    session = Session(registry, "raw:1", info)
    session.receive_data(MAGIC_V1 + data, now_ns)
    output = b"" if is_early else _process(session, now_ns)
    session.receive_eof(now_ns)
    output += _process(session, now_ns)
    answers = list(AnswerDecoder(answer_size_max=1 << 20).feed(output))
    is_right = len(answers) == len(expected) and all(map(bytes.startswith, answers, expected))
    conclude(11, is_right, f"{answers} were sent to {what}, not {expected}")
    conclude(24, session.ended and registry.active_peers(now_ns) == peers, f"a session is left after {what}")


def _process(session: Session, now_ns: int) -> bytes:
    """Process what a session has received; return the answers."""
    output = session.data_to_send()
    while session.has_input:
        session.process_input(now_ns)
        output += session.data_to_send()
    return output
