"""The answer of an auth server, and the checks of commands against it."""

from __future__ import annotations

from typing import Final

from nsqkit.broker.core.session.auth import PERMISSIONS, decode_auth_state
from nsqkit.errors import ProtocolError
from tests.fuzz.broker_session import NOW_NS

_ENTRY: Final = b'{"topic":"^t.*$","channels":[".*","c[0-9]{2,5}(a|b)?"],"permissions":["subscribe","publish"]}'
NAMES: Final = ((b"t", b"c"), (b"t", b""), (b"t#ephemeral", b"c23a"), (b"a" * 64, b"b" * 64))

SEEDS: Final = [
    b'{"ttl":60,"identity":"i","identity_url":"u","authorizations":[' + _ENTRY + b"," + _ENTRY + b"]}",
    b'{"ttl":1,"authorizations":[{"topic":"(((a{100}){100}){100})","channels":[]}]}',
    b'{"ttl":0}',
    b'{"ttl":9223372036854775807,"authorizations":[{"topic":"\\ud800\\\\C","permissions":["other"]},null]}',
]
WORDS: Final = [
    *(word.encode() for word in PERMISSIONS),
    b"ttl",
    b"authorizations",
    b"\\\\pL",
    b"[[:alpha:]]",
    b"{2,900}",
]
CALLS_PER_UNIT: Final = 40


def run(data: bytes) -> int:
    try:
        state = decode_auth_state(data, NOW_NS)
    except ProtocolError:
        return len(data)
    assert state.expires_ns > NOW_NS
    answers = [state.is_allowed(*names) for names in NAMES]
    assert answers == [state.is_allowed(*names) for names in NAMES]
    assert state.authorizations or not any(answers)
    return len(data)
