"""Cases: FIN, REQ and TOUCH, and the timeout of a message."""

from __future__ import annotations

from typing import Final

from nsqkit.testing.conformance.case import Subject
from nsqkit.testing.conformance.connection import Connection
from nsqkit.testing.conformance.probe import CHANNEL, MSG_TIMEOUT_MS, Probe
from nsqkit.testing.conformance.received import Message, Mismatch

FIN: Final = Subject("fin", "nsqd/protocol_v2.go")
REQ: Final = Subject("req", "nsqd/protocol_v2.go")
TOUCH: Final = Subject("touch", "nsqd/protocol_v2.go")
TIMEOUT: Final = Subject("timeout", "nsqd/channel.go")

_UNKNOWN: Final = b"0" * 16


def _one_message(probe: Probe, *, msg_timeout: int = MSG_TIMEOUT_MS) -> tuple[Connection, Message, bytes]:
    """Return a consumer, the one message that it holds, and its topic; the timeout is in ms."""
    topic = probe.topic()
    connection = probe.consumer(topic, msg_timeout=msg_timeout)
    probe.publish(topic, b"x")
    return connection, connection.expect_message(b"x", attempts=1), topic


def _refuse(subject: Subject, name: str, rule: str, command: bytes, error: bytes) -> None:
    """Add a case in which a command of a consumer is refused, and the connection ends."""

    def check(probe: Probe) -> None:
        connection = probe.consumer(probe.topic())
        connection.send(command)
        connection.expect_error(error, ends=True)

    check.__name__ = name
    check.__doc__ = rule
    subject.case()(check)


for _subject, _verb, _more in ((FIN, b"FIN", b""), (REQ, b"REQ", b" 0"), (TOUCH, b"TOUCH", b"")):
    _refuse(
        _subject,
        "without_id",
        f"{_verb.decode()} without an id is refused, and the connection ends.",
        _verb + b"\n",
        b"E_INVALID %b insufficient number of params" % _verb,
    )
    _refuse(
        _subject,
        "short_id",
        "An id that has not 16 bytes is refused, and the connection ends.",
        _verb + b" 0123456789abcde%b\n" % _more,
        b"E_INVALID invalid message ID",
    )


def _unknown_id(subject: Subject, verb: bytes, more: bytes = b"") -> None:
    """Add a case in which a command has an unknown id."""

    @subject.case()
    def unknown_id(probe: Probe) -> None:
        """The id of no message in flight is an error that does not end the connection."""
        topic = probe.topic()
        connection = probe.consumer(topic, ready=None)
        connection.send(b"%b %b%b\n" % (verb, _UNKNOWN, more))
        text = b"E_%b_FAILED %b %b failed ID not in flight" % (verb, verb, _UNKNOWN)
        connection.expect_error(text, ends=False)
        connection.publish(topic, b"x")


_unknown_id(FIN, b"FIN")
_unknown_id(REQ, b"REQ", b" 0")
_unknown_id(TOUCH, b"TOUCH")


# ---- FIN ---------------------------------------------------------------------------------------------------------


@FIN.case()
def finished(probe: Probe) -> None:
    """FIN has no answer; the message is gone, and a second FIN fails."""
    connection, message, _ = _one_message(probe)
    connection.send(b"FIN %b\nFIN %b\n" % (message.id, message.id))
    connection.expect_error(b"E_FIN_FAILED FIN %b failed ID not in flight" % message.id, ends=False)


@FIN.case(source="nsqd/stats.go")
def in_stats(probe: Probe) -> None:
    """A message in flight is counted in /stats, and no longer after its FIN."""
    connection, message, topic = _one_message(probe)
    probe.wait_for_stats({"in_flight_count": 1, "depth": 0}, lambda: probe.channel_stats(topic))
    connection.send(b"FIN %b\n" % message.id)
    probe.wait_for_stats({"in_flight_count": 0, "message_count": 1}, lambda: probe.channel_stats(topic))


@FIN.case(source="nsqd/channel.go")
def of_another_consumer(probe: Probe) -> None:
    """A consumer cannot finish a message of another one."""
    _, message, topic = _one_message(probe)
    other = probe.consumer(topic, ready=None)
    other.send(b"FIN %b\n" % message.id)
    other.expect_error(b"E_FIN_FAILED FIN %b failed client does not own message" % message.id, ends=False)


# ---- REQ ---------------------------------------------------------------------------------------------------------


@REQ.case()
def at_once(probe: Probe) -> None:
    """REQ with 0 has no answer; the message is delivered again with its id, its time and the next attempt."""
    connection, message, _ = _one_message(probe)
    connection.send(b"REQ %b 0\n" % message.id)
    again = connection.expect_message(b"x", attempts=2)
    if (again.id, again.timestamp_ns) != (message.id, message.timestamp_ns):
        raise Mismatch(f"{message.id!r} at {message.timestamp_ns}", f"{again.id!r} at {again.timestamp_ns}")


@REQ.case(waits=True)
def delay(probe: Probe) -> None:
    """REQ with a delay in ms delivers the message after it, and not earlier."""
    connection, message, _ = _one_message(probe)
    elapsed = probe.elapsed()
    connection.send(b"REQ %b 700\n" % message.id)
    connection.expect_message(b"x", attempts=2, seconds=probe.within(0.7))
    probe.check_not_early(elapsed(), 0.7)


@REQ.case()
def long_delay(probe: Probe) -> None:
    """A delay above --max-req-timeout is shortened to it, without an error."""
    connection, message, topic = _one_message(probe)
    connection.send(b"REQ %b %d\n" % (message.id, 10**12))
    connection.publish(topic, b"y")
    probe.wait_for_stats({"deferred_count": 1, "requeue_count": 1}, lambda: probe.channel_stats(topic))


@REQ.case()
def to_another_consumer(probe: Probe) -> None:
    """A requeued message may go to another consumer of the channel."""
    connection, message, topic = _one_message(probe)
    other = probe.consumer(topic)
    connection.send(b"RDY 0\nREQ %b 0\n" % message.id)
    other.expect_message(b"x", attempts=2)


@REQ.case()
def no_number(probe: Probe) -> None:
    """A delay that is not a number is refused, and the connection ends."""
    connection, message, _ = _one_message(probe)
    connection.send(b"REQ %b soon\n" % message.id)
    connection.expect_error(b"E_INVALID REQ could not parse timeout soon", ends=True)


_refuse(
    REQ,
    "without_delay",
    "REQ without a delay is refused, and the connection ends.",
    b"REQ 0123456789abcdef\n",
    b"E_INVALID REQ insufficient number of params",
)


# ---- TOUCH -------------------------------------------------------------------------------------------------------


@TOUCH.case(waits=True)
def longer_than_the_timeout(probe: Probe) -> None:
    """TOUCH has no answer, and begins the timeout of the message anew."""
    connection, message, _ = _one_message(probe, msg_timeout=2000)  # a busy machine may send a TOUCH late
    for _ in range(5):
        connection.expect_nothing(0.5)
        elapsed = probe.elapsed()
        connection.send(b"TOUCH %b\n" % message.id)
    connection.expect_message(b"x", attempts=2, seconds=probe.within(2.0))
    probe.check_not_early(elapsed(), 2.0)


# ---- timeouts ----------------------------------------------------------------------------------------------------


@TIMEOUT.case(waits=True)
def redelivery(probe: Probe) -> None:
    """A message that is not answered within msg_timeout is delivered again, not earlier, with the next attempt."""
    topic = probe.topic()
    connection = probe.consumer(topic, msg_timeout=1000)
    elapsed = probe.elapsed()  # the message may be read long after it was delivered
    probe.publish(topic, b"x")
    message = connection.expect_message(b"x", attempts=1)
    again = connection.expect_message(b"x", attempts=2, seconds=probe.within(1.0))
    probe.check_not_early(elapsed(), 1.0)
    if again.id != message.id:
        raise Mismatch(f"the id {message.id!r}", f"{again.id!r}")


@TIMEOUT.case(waits=True)
def late_fin(probe: Probe) -> None:
    """FIN fails once the message has timed out and has gone to another consumer."""
    connection, message, topic = _one_message(probe, msg_timeout=1000)
    connection.send(b"RDY 0\n")
    probe.consumer(topic).expect_message(b"x", attempts=2, seconds=probe.within(1.0))
    connection.send(b"FIN %b\n" % message.id)
    text = b"E_FIN_FAILED FIN %b failed client does not own message" % message.id
    connection.expect_error(text, ends=False)


@TIMEOUT.case(waits=True)
def lost_consumer(probe: Probe) -> None:
    """A message of a consumer that has disconnected waits for its timeout, and goes to another consumer."""
    topic = probe.topic()
    other = probe.consumer(topic, ready=None)
    connection = probe.consumer(topic, msg_timeout=1000)
    elapsed = probe.elapsed()
    probe.publish(topic, b"x")
    connection.expect_message(b"x", attempts=1)
    connection.close()
    other.send(b"RDY 1\n")
    other.expect_message(b"x", attempts=2, seconds=probe.within(1.0))
    probe.check_not_early(elapsed(), 0.9)


@TIMEOUT.case(waits=True, source="nsqd/stats.go")
def count_in_stats(probe: Probe) -> None:
    """A timeout is counted in /stats."""
    connection, _, topic = _one_message(probe, msg_timeout=1000)
    connection.expect_message(b"x", attempts=2, seconds=probe.within(1.0))
    probe.wait_for_stats({"timeout_count": 1, "requeue_count": 0}, lambda: probe.channel_stats(topic, CHANNEL))
