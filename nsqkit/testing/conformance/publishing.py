"""Cases: PUB, MPUB and DPUB."""

from __future__ import annotations

from typing import Final

from nsqkit.testing.conformance.case import Subject
from nsqkit.testing.conformance.connection import encode_messages, encode_mpub, encode_pub, sized
from nsqkit.testing.conformance.probe import MSG_TIMEOUT_MS, Probe
from nsqkit.testing.conformance.received import Mismatch, Skipped

PUB: Final = Subject("pub", "nsqd/protocol_v2.go")
MPUB: Final = Subject("mpub", "nsqd/protocol_v2.go")
DPUB: Final = Subject("dpub", "nsqd/protocol_v2.go")

_BIG = 16 << 20
_DAY_NS = 86_400 * 10**9


@PUB.case()
def delivery(probe: Probe) -> None:
    """PUB is answered with OK, and the message is delivered with attempt 1, its time, and an id of 16 hex digits."""
    topic = probe.topic()
    consumer = probe.consumer(topic)
    probe.publish(topic, b"x")
    message = consumer.expect_message(b"x", attempts=1)
    if set(message.id) - set(b"0123456789abcdef"):
        raise Mismatch("an id of lower-case hexadecimal digits", repr(message.id))
    if abs(message.timestamp_ns - probe.now_ns()) > _DAY_NS:
        raise Mismatch("a time in nanoseconds since 1970, about now", str(message.timestamp_ns))


@PUB.case()
def every_byte(probe: Probe) -> None:
    """A body may have any bytes, and arrives unchanged."""
    topic = probe.topic()
    body = bytes(range(256))
    probe.publish(topic, body)
    probe.consumer(topic).expect_message(body)


@PUB.case()
def pipeline(probe: Probe) -> None:
    """Several PUBs may be sent at once; each gets its OK."""
    topic = probe.topic()
    connection = probe.connect()
    connection.send(b"".join(encode_pub(topic, b"%d" % number) for number in range(10)))
    for _ in range(10):
        connection.expect_response()


@PUB.case()
def before_the_first_channel(probe: Probe) -> None:
    """Messages of a topic without channels wait for its first channel."""
    topic = probe.topic()
    probe.publish(topic, b"a", b"b")
    consumer = probe.consumer(topic, ready=2)
    bodies = {consumer.expect_message().body, consumer.expect_message().body}
    if bodies != {b"a", b"b"}:
        raise Mismatch("a and b", str(sorted(bodies)))


@PUB.case()
def each_channel(probe: Probe) -> None:
    """Each channel of a topic gets each message."""
    topic = probe.topic()
    consumers = [probe.consumer(topic, channel=name) for name in (b"a#ephemeral", b"b#ephemeral")]
    probe.publish(topic, b"x")
    for consumer in consumers:
        consumer.expect_message(b"x", attempts=1)


@PUB.case()
def by_a_consumer(probe: Probe) -> None:
    """A consumer may publish on its connection."""
    topic = probe.topic()
    connection = probe.consumer(topic, ready=None)
    connection.publish(topic, b"x")
    connection.send(b"RDY 1\n")
    connection.expect_message(b"x")


@PUB.case()
def unique_ids(probe: Probe) -> None:
    """Messages of a topic have different ids."""
    topic = probe.topic()
    consumer = probe.consumer(topic, ready=10, msg_timeout=MSG_TIMEOUT_MS)
    ids = set()
    for _ in range(10):
        probe.publish(topic, b"x")
        ids.add(consumer.expect_message().id)
    if len(ids) != 10:
        raise Mismatch("10 different ids", f"{len(ids)}")


@PUB.case()
def largest_body(probe: Probe) -> None:
    """A body may have exactly --max-msg-size bytes."""
    size = probe.option("max_msg_size")
    if size > _BIG:
        raise Skipped(f"--max-msg-size is {size}, more than {_BIG}")
    topic = probe.topic()
    probe.publish(topic, b"x" * size)
    probe.consumer(topic).expect_message(b"x" * size)


@PUB.case()
def too_big(probe: Probe) -> None:
    """A body above --max-msg-size is refused before it is read."""
    size = probe.option("max_msg_size")
    connection = probe.connect()
    connection.send(b"PUB " + probe.topic() + b"\n" + (size + 1).to_bytes(4, "big"))
    connection.expect_error(b"E_BAD_MESSAGE PUB message too big %d > %d" % (size + 1, size), ends=True)


PUB.refusal(
    "without-topic",
    "PUB without a topic is refused.",
    b"PUB\n",
    b"E_INVALID PUB insufficient number of parameters",
)
PUB.refusal(
    "empty-body",
    "A message without bytes is refused.",
    b"PUB <topic>\n" + sized(b""),
    b"E_BAD_MESSAGE PUB invalid message body size 0",
)
PUB.refusal(
    "negative-size",
    "A negative size is refused.",
    b"PUB <topic>\n" + b"\xff" * 4,
    b"E_BAD_MESSAGE PUB invalid message body size -1",
)


# ---- MPUB --------------------------------------------------------------------------------------------------------


@MPUB.case(source="nsqd/protocol_v2.go")
def all_messages(probe: Probe) -> None:
    """MPUB gets one OK, and all its messages are delivered."""
    topic = probe.topic()
    consumer = probe.consumer(topic, ready=3)
    connection = probe.connect()
    connection.send(encode_mpub(topic, b"a", b"bb"))
    connection.expect_response()
    bodies = sorted(consumer.expect_message().body for _ in range(2))
    if bodies != [b"a", b"bb"]:
        raise Mismatch("a and bb", str(bodies))
    connection.publish(topic, b"ccc")
    consumer.expect_message(b"ccc")


@MPUB.case(waits=True)
def all_or_nothing(probe: Probe) -> None:
    """If one message of an MPUB is refused, none is stored."""
    topic = probe.topic()
    consumer = probe.consumer(topic)
    connection = probe.connect()
    connection.send(encode_mpub(topic, b"x", b""))
    connection.expect_error(b"E_BAD_MESSAGE MPUB invalid message(1) body size 0", ends=True)
    consumer.expect_nothing()


@MPUB.case()
def too_big_a_message(probe: Probe) -> None:
    """A message above --max-msg-size is refused."""
    size = probe.option("max_msg_size")
    topic = probe.topic()
    connection = probe.connect()
    head = (1).to_bytes(4, "big") + (size + 1).to_bytes(4, "big")
    connection.send(b"MPUB " + topic + b"\n" + (8).to_bytes(4, "big") + head)
    connection.expect_error(b"E_BAD_MESSAGE MPUB message too big %d > %d" % (size + 1, size), ends=True)


@MPUB.case()
def too_big_a_body(probe: Probe) -> None:
    """A body above --max-body-size is refused before it is read."""
    size = probe.option("max_body_size")
    connection = probe.connect()
    connection.send(b"MPUB " + probe.topic() + b"\n" + (size + 1).to_bytes(4, "big"))
    connection.expect_error(b"E_BAD_BODY MPUB body too big %d > %d" % (size + 1, size), ends=True)


MPUB.refusal(
    "without-topic",
    "MPUB without a topic is refused.",
    b"MPUB\n",
    b"E_INVALID MPUB insufficient number of parameters",
)
for _name, _rule, _body, _text in (
    ("empty-body", "A body of no bytes is refused.", sized(b""), b"E_BAD_BODY MPUB invalid body size 0"),
    ("no-message", "A count of 0 is refused.", sized(encode_messages()), b"E_BAD_BODY MPUB invalid message count 0"),
    ("negative-count", "A negative count is refused.", sized(b"\xff" * 4), b"E_BAD_BODY MPUB invalid message count -1"),
    (
        "empty-message",
        "A message without bytes is refused, with its index.",
        sized(encode_messages(b"")),
        b"E_BAD_MESSAGE MPUB invalid message(0) body size 0",
    ),
):
    MPUB.refusal(_name, _rule, b"MPUB <topic>\n" + _body, _text)


# ---- DPUB --------------------------------------------------------------------------------------------------------


@DPUB.case()
def without_delay(probe: Probe) -> None:
    """A delay of 0 is no delay."""
    topic = probe.topic()
    consumer = probe.consumer(topic)
    connection = probe.connect()
    connection.send(b"DPUB %b 0\n" % topic + sized(b"x"))
    connection.expect_response()
    consumer.expect_message(b"x", attempts=1)


@DPUB.case(waits=True)
def delay(probe: Probe) -> None:
    """A message with a delay is delivered after it, with attempt 1, and not earlier."""
    topic = probe.topic()
    consumer = probe.consumer(topic)
    connection = probe.connect()
    elapsed = probe.elapsed()
    connection.send(b"DPUB %b 700\n" % topic + sized(b"x"))
    connection.expect_response()
    consumer.expect_message(b"x", attempts=1, seconds=probe.within(0.7))
    probe.check_not_early(elapsed(), 0.7)


@DPUB.case(source="nsqd/stats.go")
def in_stats(probe: Probe) -> None:
    """Until it is due, the message is counted as deferred in /stats, and not in the depth."""
    topic = probe.topic()
    probe.consumer(topic)
    connection = probe.connect()
    connection.send(b"DPUB %b 5000\n" % topic + sized(b"x"))
    connection.expect_response()
    probe.wait_for_stats({"deferred_count": 1, "depth": 0}, lambda: probe.channel_stats(topic))


@DPUB.case()
def too_long(probe: Probe) -> None:
    """A delay above --max-req-timeout is refused."""
    delay_max = probe.option("max_req_timeout") // 10**6
    connection = probe.connect()
    connection.send(b"DPUB %b %d\n" % (probe.topic(), delay_max + 1) + sized(b"x"))
    text = b"E_INVALID DPUB timeout %d out of range 0-%d" % (delay_max + 1, delay_max)
    connection.expect_error(text, ends=True)


DPUB.refusal(
    "without-delay-word",
    "DPUB without a delay is refused.",
    b"DPUB <topic>\n",
    b"E_INVALID DPUB insufficient number of parameters",
)
DPUB.refusal(
    "negative-delay",
    "A delay has only digits.",
    b"DPUB <topic> -1\n",
    b"E_INVALID DPUB could not parse timeout -1",
)
DPUB.refusal(
    "empty-body",
    "A message without bytes is refused.",
    b"DPUB <topic> 0\n" + sized(b""),
    b"E_BAD_MESSAGE DPUB invalid message body size 0",
)
