"""Cases: the magic, commands in general, and IDENTIFY."""

from __future__ import annotations

from typing import Any, Final

from nsqkit.testing.conformance.case import Subject
from nsqkit.testing.conformance.connection import encode_identify, encode_pub, sized
from nsqkit.testing.conformance.probe import CHANNEL, Probe
from nsqkit.testing.conformance.received import Mismatch, Received, Skipped

HANDSHAKE: Final = Subject("handshake", "nsqd/protocol_v2.go")
IDENTIFY: Final = Subject("identify", "nsqd/client_v2.go")

KEYS: Final = (
    *("max_rdy_count", "version", "max_msg_timeout", "msg_timeout", "tls_v1", "deflate", "deflate_level"),
    *("max_deflate_level", "snappy", "sample_rate", "auth_required", "output_buffer_size", "output_buffer_timeout"),
)
"""The keys that every answer to IDENTIFY has."""


@HANDSHAKE.case(source="nsqd/tcp.go")
def unknown_magic(probe: Probe) -> None:
    """A connection that begins with an unknown magic gets E_BAD_PROTOCOL and ends."""
    connection = probe.connect(b"  V9")
    connection.expect_error(b"E_BAD_PROTOCOL", ends=True)


@HANDSHAKE.case()
def magic_and_command_in_one_write(probe: Probe) -> None:
    """Commands may follow the magic in the same segment."""
    connection = probe.connect(b"  V2" + encode_pub(probe.topic(), b"x"))
    connection.expect_response()


@HANDSHAKE.case()
def single_bytes(probe: Probe) -> None:
    """A command may arrive in any number of segments."""
    connection = probe.connect(b"")
    for byte in b"  V2" + encode_pub(probe.topic(), b"xyz"):
        connection.send(bytes([byte]))
    connection.expect_response()


@HANDSHAKE.case()
def carriage_return(probe: Probe) -> None:
    """A line may end with a carriage return and a newline."""
    connection = probe.connect()
    connection.send(b"PUB " + probe.topic() + b"\r\n" + sized(b"x"))
    connection.expect_response()


@HANDSHAKE.case()
def nop(probe: Probe) -> None:
    """NOP has no answer."""
    connection = probe.connect()
    connection.send(b"NOP\n" * 3)
    connection.publish(probe.topic(), b"x")


@HANDSHAKE.case()
def long_line(probe: Probe) -> None:
    """A line that does not fit in the read buffer of 16 KiB ends the connection, without an error."""
    connection = probe.connect()
    connection.send(b"P" * 16384)
    connection.expect_end()


@HANDSHAKE.case()
def without_identify(probe: Probe) -> None:
    """IDENTIFY is optional, for publishers and for consumers."""
    topic = probe.topic()
    probe.publish(topic, b"x")
    probe.consumer(topic).expect_message(b"x")


HANDSHAKE.refusal("unknown-command", "An unknown command is refused.", b"HELLO\n", b"E_INVALID invalid command HELLO")
HANDSHAKE.refusal(
    "lower-case-command",
    "The case of a command matters.",
    b"pub <topic>\n",
    b"E_INVALID invalid command pub",
)
HANDSHAKE.refusal("empty-line", "An empty line is an unknown command.", b"\n", b"E_INVALID invalid command ")
HANDSHAKE.refusal(
    "auth-without-server",
    "AUTH is refused by a broker without auth servers.",
    b"AUTH\n" + sized(b"secret"),
    b"E_AUTH_DISABLED AUTH disabled",
)
HANDSHAKE.refusal(
    "auth-with-a-word",
    "AUTH has no words after it.",
    b"AUTH secret\n",
    b"E_INVALID AUTH invalid number of parameters",
)


# ---- IDENTIFY ----------------------------------------------------------------------------------------------------


@IDENTIFY.case(source="nsqd/protocol_v2.go")
def without_feature_negotiation(probe: Probe) -> None:
    """IDENTIFY without feature_negotiation is answered with OK."""
    connection = probe.connect()
    connection.send(encode_identify({"client_id": "conformance"}))
    connection.expect_response()


@IDENTIFY.case(source="nsqd/protocol_v2.go")
def keys_of_the_answer(probe: Probe) -> None:
    """IDENTIFY with feature_negotiation is answered with a JSON object that has the keys of the protocol."""
    answer = probe.connect().identify()
    if missing := [key for key in KEYS if key not in answer]:
        raise Mismatch(f"an object with {', '.join(KEYS)}", f"an object without {', '.join(missing)}")


@IDENTIFY.case(source="nsqd/protocol_v2.go")
def topology(probe: Probe) -> None:
    """A broker that has a topology, as nsqd after 1.3.0, answers both its region and its zone."""
    answer = probe.connect().identify()
    keys = [key for key in ("topology_region", "topology_zone") if isinstance(answer.get(key), str)]
    if not keys:
        raise Skipped("the broker has no topology")
    if len(keys) == 1:
        raise Mismatch("topology_region and topology_zone", f"only {keys[0]}")


@IDENTIFY.case(source="nsqd/protocol_v2.go")
def null(probe: Probe) -> None:
    """The document null is an object without keys."""
    connection = probe.connect()
    connection.send(encode_identify(None))
    connection.expect_response()


@IDENTIFY.case(source="nsqd/protocol_v2.go")
def unknown_keys(probe: Probe) -> None:
    """Unknown keys are ignored."""
    probe.connect().identify(no_such_key=[1, 2], msg_timeout=None)


def _check_grant(probe: Probe, requested: dict[str, int], granted: dict[str, int]) -> None:
    answer = probe.connect().identify(**requested)
    for key, value in granted.items():
        if answer.get(key) != value:
            raise Mismatch(f"{key} {value}", f"{key} {answer.get(key)!r}")


@IDENTIFY.case()
def msg_timeout(probe: Probe) -> None:
    """A msg_timeout of a second or more is granted."""
    _check_grant(probe, {"msg_timeout": 1000}, {"msg_timeout": 1000})


@IDENTIFY.case()
def sample_rate(probe: Probe) -> None:
    """A sample_rate of 0 to 99 is granted."""
    _check_grant(probe, {"sample_rate": 99}, {"sample_rate": 99})


@IDENTIFY.case()
def output_buffer(probe: Probe) -> None:
    """An output buffer of 64 bytes or more is granted."""
    _check_grant(probe, {"output_buffer_size": 64}, {"output_buffer_size": 64})


@IDENTIFY.case()
def output_buffer_off(probe: Probe) -> None:
    """An output_buffer_size of -1 means no buffer: 1 byte and no time are granted."""
    _check_grant(probe, {"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout": 0})


@IDENTIFY.case()
def output_buffer_timeout_off(probe: Probe) -> None:
    """An output_buffer_timeout of -1 is granted as 0."""
    _check_grant(probe, {"output_buffer_timeout": -1}, {"output_buffer_timeout": 0})


@IDENTIFY.case(source="nsqd/protocol_v2.go")
def second_identify(probe: Probe) -> None:
    """IDENTIFY may be repeated before SUB; the last one holds."""
    connection = probe.connect()
    connection.identify(msg_timeout=2000)
    answer = connection.identify(msg_timeout=1000)
    if answer.get("msg_timeout") != 1000:
        raise Mismatch("msg_timeout 1000", f"{answer.get('msg_timeout')!r}")


@IDENTIFY.case(source="nsqd/protocol_v2.go")
def after_sub(probe: Probe) -> None:
    """IDENTIFY after SUB is refused, and the connection ends."""
    connection = probe.consumer(probe.topic())
    connection.send(encode_identify({}))
    connection.expect_error(b"E_INVALID cannot IDENTIFY in current state", ends=True)


@IDENTIFY.case(source="nsqd/protocol_v2.go")
def sub_without_heartbeats(probe: Probe) -> None:
    """A client that has switched heartbeats off cannot consume."""
    connection = probe.connect()
    connection.identify(heartbeat_interval=-1)
    connection.send(b"SUB %b %b\n" % (probe.topic(), CHANNEL))
    connection.expect_error(b"E_INVALID cannot SUB with heartbeats disabled", ends=True)


@IDENTIFY.case(source="nsqd/protocol_v2.go")
def two_compressions(probe: Probe) -> None:
    """A client that requests both deflate and snappy is refused."""
    answer = probe.connect().identify()
    if "deflate" not in answer or "snappy" not in answer:
        raise Skipped("the broker's answer to IDENTIFY has no deflate or no snappy")
    connection = probe.connect()
    connection.send(encode_identify({"feature_negotiation": True, "deflate": True, "snappy": True}))
    received = connection.receive()
    if received.kind == "response":
        raise Skipped("the broker does not offer both")
    if received != Received("error", b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"):
        raise Mismatch("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression", str(received))
    connection.expect_end()


@IDENTIFY.case(source="nsqd/stats.go")
def identity_in_stats(probe: Probe) -> None:
    """The client_id, the hostname and the user_agent of a consumer are in /stats."""
    topic = probe.topic()
    identity: dict[str, Any] = {"client_id": "conformance", "hostname": "host.example", "user_agent": "conformance/1"}
    probe.consumer(topic, **identity)
    probe.wait_for_stats(identity, lambda: ((probe.channel_stats(topic) or {}).get("clients") or [None])[0])


@IDENTIFY.case(source="nsqd/protocol_v2.go")
def too_big(probe: Probe) -> None:
    """A body above --max-body-size is refused before it is read."""
    size_max = probe.option("max_body_size")
    connection = probe.connect()
    connection.send(b"IDENTIFY\n" + (size_max + 1).to_bytes(4, "big"))
    connection.expect_error(b"E_BAD_BODY IDENTIFY body too big %d > %d" % (size_max + 1, size_max), ends=True)


for _name, _rule, _body, _text in (
    ("no-json", "A body that is not JSON is refused.", sized(b"{"), b"failed to decode JSON body"),
    ("no-object", "A body that is no JSON object is refused.", sized(b"[1]"), b"failed to decode JSON body"),
    (
        "wrong-type",
        "A value of a wrong type is refused.",
        sized(b'{"msg_timeout":"1s"}'),
        b"failed to decode JSON body",
    ),
    ("empty-body", "A body of no bytes is refused.", sized(b""), b"invalid body size 0"),
    ("negative-size", "A negative size of a body is refused.", b"\xff" * 4, b"invalid body size -1"),
):
    IDENTIFY.refusal(_name, _rule, b"IDENTIFY\n" + _body, b"E_BAD_BODY IDENTIFY " + _text)

for _key, _value, _words in (
    ("heartbeat_interval", 999, "heartbeat interval"),
    ("output_buffer_timeout", -2, "output buffer timeout"),
    ("output_buffer_size", 63, "output buffer size"),
    ("sample_rate", 100, "sample rate"),
    ("msg_timeout", 999, "msg timeout"),
):
    IDENTIFY.refusal(
        f"{_key}-out-of-range",
        f"A {_key} of {_value} is refused.",
        encode_identify({_key: _value}),
        f"E_BAD_BODY IDENTIFY {_words} ({_value}) is invalid".encode(),
    )
