"""Cases: TLS, deflate and snappy, where the broker offers them."""

from __future__ import annotations

from typing import Any, Final

from nsqkit.testing.conformance.case import Subject
from nsqkit.testing.conformance.connection import Connection, encode_identify
from nsqkit.testing.conformance.probe import CHANNEL, Probe
from nsqkit.testing.conformance.received import Mismatch, Skipped
from nsqkit.wire.compression import Deflate, Snappy, snappy_available

_LONG: Final = 100_000  # bytes, more than a chunk of snappy has

UPGRADES: Final = Subject("upgrades", "nsqd/protocol_v2.go")


def _granted(connection: Connection, **fields: Any) -> dict[str, Any]:
    """Return the answer to IDENTIFY; skip the case if the broker does not grant all that is true in ``fields``."""
    answer = connection.identify(**fields)
    for key, value in fields.items():
        if value is True and answer.get(key) is not True:
            raise Skipped(f"the broker does not offer {key}")
    return answer


def _exchange(probe: Probe, connection: Connection) -> None:
    """Receive the OK that begins the new layer, publish through it and consume through it."""
    connection.expect_response()
    topic = probe.topic()
    bodies = b"x" * min(_LONG, probe.option("max_msg_size", _LONG)), bytes(range(256))
    connection.publish(topic, *bodies)
    connection.subscribe(topic, CHANNEL, ready=2)
    received = {connection.expect_message().body, connection.expect_message().body}
    if received != set(bodies):
        raise Mismatch("both bodies, unchanged", "others")


@UPGRADES.case()
def deflate(probe: Probe) -> None:
    """After an IDENTIFY that grants deflate, both directions continue in raw deflate, beginning with OK."""
    connection = probe.connect()
    answer = _granted(connection, deflate=True, deflate_level=1)
    if answer.get("deflate_level") != 1:
        raise Mismatch("deflate_level 1", repr(answer.get("deflate_level")))
    connection.start_compression(Deflate(1))
    _exchange(probe, connection)


@UPGRADES.case()
def deflate_level(probe: Probe) -> None:
    """A deflate_level above --max-deflate-level is lowered to it."""
    answer = _granted(probe.connect(), deflate=True, deflate_level=99)
    if answer.get("deflate_level") != answer.get("max_deflate_level"):
        raise Mismatch(f"deflate_level {answer.get('max_deflate_level')!r}", repr(answer.get("deflate_level")))


@UPGRADES.case()
def snappy(probe: Probe) -> None:
    """After an IDENTIFY that grants snappy, both directions continue in snappy's framing format, beginning with OK."""
    if not snappy_available():
        raise Skipped("nsqkit's extra snappy is not installed")
    connection = probe.connect()
    _granted(connection, snappy=True)
    connection.start_compression(Snappy())
    _exchange(probe, connection)


@UPGRADES.case()
def tls(probe: Probe) -> None:
    """After an IDENTIFY that grants tls_v1, both directions continue in TLS, beginning with OK."""
    connection = probe.connect()
    _granted(connection, tls_v1=True)
    connection.start_tls()
    _exchange(probe, connection)


@UPGRADES.case()
def tls_and_deflate(probe: Probe) -> None:
    """With both, deflate is inside TLS, and each begins with OK."""
    connection = probe.connect()
    _granted(connection, tls_v1=True, deflate=True)
    connection.start_tls()
    connection.expect_response()
    connection.start_compression(Deflate(6))
    _exchange(probe, connection)


@UPGRADES.case()
def only_with_negotiation(probe: Probe) -> None:
    """Without feature_negotiation nothing is upgraded, and the answer is a plain OK."""
    connection = probe.connect()
    connection.send(encode_identify({"deflate": True, "tls_v1": True}))
    connection.expect_response()
    connection.publish(probe.topic(), b"x")
