"""Cases: SUB, RDY, CLS, heartbeats and sampling."""

from __future__ import annotations

from typing import Final

from nsqkit.testing.conformance.case import Subject
from nsqkit.testing.conformance.connection import QUIET_S, encode_mpub
from nsqkit.testing.conformance.probe import CHANNEL, MSG_TIMEOUT_MS, Probe
from nsqkit.testing.conformance.received import END, Mismatch, Received, Skipped

SUB: Final = Subject("sub", "nsqd/protocol_v2.go")
RDY: Final = Subject("rdy", "nsqd/protocol_v2.go")
CLS: Final = Subject("cls", "nsqd/protocol_v2.go")
HEARTBEAT: Final = Subject("heartbeat", "nsqd/protocol_v2.go")
SAMPLING: Final = Subject("sampling", "nsqd/protocol_v2.go")

_SAMPLED: Final = 1000
_HEARTBEAT: Final = Received("response", b"_heartbeat_")


# ---- SUB ---------------------------------------------------------------------------------------------------------


@SUB.case(waits=True)
def before_rdy(probe: Probe) -> None:
    """A consumer gets nothing before its first RDY."""
    topic = probe.topic()
    probe.publish(topic, b"x")
    connection = probe.consumer(topic, ready=None)
    connection.expect_nothing()
    connection.send(b"RDY 1\n")
    connection.expect_message(b"x")


@SUB.case()
def twice(probe: Probe) -> None:
    """A second SUB on a connection is refused, and the connection ends."""
    topic = probe.topic()
    connection = probe.consumer(topic)
    connection.send(b"SUB %b other#ephemeral\n" % topic)
    connection.expect_error(b"E_INVALID cannot SUB in current state", ends=True)


@SUB.case(waits=True)
def one_of_two_consumers(probe: Probe) -> None:
    """A message goes to one consumer of a channel."""
    topic = probe.topic()
    consumers = [probe.consumer(topic, msg_timeout=MSG_TIMEOUT_MS) for _ in range(2)]
    probe.publish(topic, b"x")
    received = [consumer.receive(QUIET_S) for consumer in consumers]
    if [one.kind for one in received].count("message") != 1:
        raise Mismatch("a message for one of two consumers", " and ".join(map(str, received)))


SUB.refusal(
    "without-channel",
    "SUB without a channel is refused.",
    b"SUB <topic>\n",
    b"E_INVALID SUB insufficient number of parameters",
)
for _command in (b"RDY 1", b"FIN 0123456789abcdef", b"REQ 0123456789abcdef 0", b"TOUCH 0123456789abcdef", b"CLS"):
    _verb = _command.split()[0].decode()
    SUB.refusal(
        f"{_verb.lower()}-before-sub",
        f"{_verb} before SUB is refused.",
        _command + b"\n",
        f"E_INVALID cannot {_verb} in current state".encode(),
    )


# ---- RDY ---------------------------------------------------------------------------------------------------------


@RDY.case(waits=True)
def limit(probe: Probe) -> None:
    """RDY is the number of messages in flight: the next one comes after a FIN."""
    topic = probe.topic()
    connection = probe.consumer(topic, ready=2, msg_timeout=MSG_TIMEOUT_MS)
    probe.publish(topic, b"x", b"x")
    message = connection.expect_message()
    connection.expect_message()
    probe.publish(topic, b"x")
    connection.expect_nothing()
    connection.send(b"FIN %b\n" % message.id)
    connection.expect_message()


@RDY.case(waits=True)
def zero(probe: Probe) -> None:
    """RDY 0 stops the delivery until the next RDY."""
    topic = probe.topic()
    connection = probe.consumer(topic, ready=1, msg_timeout=MSG_TIMEOUT_MS)
    probe.publish(topic, b"a")
    message = connection.expect_message(b"a")
    connection.send(b"RDY 0\nFIN %b\n" % message.id)
    probe.publish(topic, b"b")
    connection.expect_nothing()
    connection.send(b"RDY 1\n")
    connection.expect_message(b"b")


@RDY.case()
def without_count(probe: Probe) -> None:
    """RDY without a count is RDY 1."""
    topic = probe.topic()
    connection = probe.consumer(topic, ready=None)
    connection.send(b"RDY\n")
    probe.publish(topic, b"x")
    connection.expect_message(b"x")


@RDY.case()
def highest(probe: Probe) -> None:
    """RDY may be as high as max_rdy_count in the answer to IDENTIFY, and no higher."""
    topic = probe.topic()
    connection = probe.connect()
    count_max = connection.identify().get("max_rdy_count")
    if not isinstance(count_max, int):
        raise Mismatch("a number for max_rdy_count", repr(count_max))
    connection.subscribe(topic, CHANNEL, ready=count_max)
    connection.publish(topic, b"x")
    connection.expect_message(b"x")
    connection.send(b"RDY %d\n" % (count_max + 1))
    text = b"E_INVALID RDY count %d out of range 0-%d" % (count_max + 1, count_max)
    connection.expect_error(text, ends=True)


@RDY.case()
def no_number(probe: Probe) -> None:
    """A count that is not a number is refused."""
    connection = probe.consumer(probe.topic(), ready=None)
    connection.send(b"RDY -1\n")
    connection.expect_error(b"E_INVALID RDY could not parse count -1", ends=True)


# ---- CLS ---------------------------------------------------------------------------------------------------------


@CLS.case(waits=True)
def close_wait(probe: Probe) -> None:
    """CLS is answered with CLOSE_WAIT, and no further message comes."""
    topic = probe.topic()
    connection = probe.consumer(topic)
    connection.send(b"CLS\n")
    connection.expect_response(b"CLOSE_WAIT")
    probe.publish(topic, b"x")
    connection.expect_nothing()


@CLS.case()
def answers_after_it(probe: Probe) -> None:
    """After CLS a consumer can still answer its messages."""
    topic = probe.topic()
    connection = probe.consumer(topic, msg_timeout=MSG_TIMEOUT_MS)
    probe.publish(topic, b"x")
    message = connection.expect_message(b"x")
    connection.send(b"CLS\n")
    connection.expect_response(b"CLOSE_WAIT")
    connection.send(b"TOUCH %b\nFIN %b\nFIN %b\n" % ((message.id,) * 3))
    connection.expect_error(b"E_FIN_FAILED FIN %b failed ID not in flight" % message.id, ends=False)


@CLS.case(waits=True)
def rdy_after_it(probe: Probe) -> None:
    """After CLS, RDY is ignored."""
    topic = probe.topic()
    connection = probe.consumer(topic, ready=None)
    connection.send(b"CLS\n")
    connection.expect_response(b"CLOSE_WAIT")
    connection.send(b"RDY 1\n")
    probe.publish(topic, b"x")
    connection.expect_nothing()


@CLS.case()
def second_cls(probe: Probe) -> None:
    """A second CLS is refused, and the connection ends."""
    connection = probe.consumer(probe.topic())
    connection.send(b"CLS\n")
    connection.expect_response(b"CLOSE_WAIT")
    connection.send(b"CLS\n")
    connection.expect_error(b"E_INVALID cannot CLS in current state", ends=True)


# ---- heartbeats --------------------------------------------------------------------------------------------------


@HEARTBEAT.case(waits=True)
def interval(probe: Probe) -> None:
    """Heartbeats come at the interval of IDENTIFY; a client that answers each with NOP stays connected."""
    connection = probe.connect()
    connection.identify(heartbeat_interval=1000)
    for _ in range(3):
        connection.expect(_HEARTBEAT, 1.0 + probe.timeout)
        connection.send(b"NOP\n")
    connection.publish(probe.topic(), b"x")


@HEARTBEAT.case(waits=True)
def silent_client(probe: Probe) -> None:
    """A client that sends nothing for two intervals is disconnected."""
    connection = probe.connect()
    elapsed = probe.elapsed()
    connection.identify(heartbeat_interval=1000)
    received = Received("response", _HEARTBEAT.payload)
    while received == _HEARTBEAT:
        received = connection.receive(2.0 + probe.timeout)
    if received.kind != END:
        raise Mismatch(END, str(received))
    probe.check_not_early(elapsed(), 1.9)


@HEARTBEAT.case(waits=True)
def off(probe: Probe) -> None:
    """A heartbeat_interval of -1 switches heartbeats off, and the client may be silent."""
    connection = probe.connect()
    connection.identify(heartbeat_interval=-1)
    connection.expect_nothing(2.5)
    connection.publish(probe.topic(), b"x")


# ---- sampling ----------------------------------------------------------------------------------------------------


@SAMPLING.case(waits=True)
def share_of_messages(probe: Probe) -> None:
    """With a sample_rate, about that percentage of the messages is delivered, and the others are discarded."""
    if min(probe.option("mem_queue_size", _SAMPLED), probe.option("max_rdy_count", _SAMPLED)) < _SAMPLED:
        raise Skipped(f"--mem-queue-size or --max-rdy-count is less than {_SAMPLED}")
    topic = probe.topic()
    connection = probe.consumer(topic, ready=_SAMPLED, sample_rate=10)
    producer = probe.connect()
    producer.send(encode_mpub(topic, *[b"x"] * _SAMPLED))
    producer.expect_response()
    count = 0
    while (received := connection.receive(2 * QUIET_S)).kind == "message":
        count += 1
    if received.kind == END or not 40 <= count <= 200:
        raise Mismatch(f"about 110 of {_SAMPLED} messages", f"{count}, then {received}")
