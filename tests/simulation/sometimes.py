"""States that a long run of worlds has to reach at some time: if it does not, the plans are too narrow.

``Watch`` (``watch.py``) records them. ``--table`` prints those that no world has reached, and with ``--sometimes`` the
command fails because of them.
"""

from __future__ import annotations

from typing import Final

SOMETIMES: Final = {
    "all in flight is touched at the end of a connection": "a lost connection held only touched messages",
    "some in flight is touched at the end of a connection": "a lost connection held touched messages and others",
    "fresh messages at the end of a connection": "a lost connection held messages that were not touched",
    "a closing consumer holds messages at its end": "a connection ended after CLS with messages in flight",
    "a producer is lost with publishes unanswered": "a connection ended while its publishes waited for a commit",
    "a kill while a publish waits": "a broker was killed while a publish waited for its answer",
    "a power cut while a publish waits": "the power was cut while a publish waited for its answer",
    "a kill with messages in flight": "a broker was killed while consumers held messages",
    "a stop with messages in flight": "a broker was stopped while consumers held messages",
    "a stop with deferred messages": "a broker was stopped while messages were deferred",
    "a stop with messages in a topic": "a broker was stopped while messages waited in a topic",
    "a stop with a paused channel": "a broker was stopped while a channel was paused",
    "a life without a clock step": "a broker started with the clock as it was",
    "a clock set back over a restart": "a broker started with a clock that was set back",
    "a clock set forward over a restart": "a broker started with a clock that was set forward",
    "a second life on one disk": "a broker started on files of an earlier life",
    "a kill inside an operation of the disk": "the process ended in the middle of a disk operation",
    "a redelivery is in flight while paused": "a channel is paused while a consumer holds a redelivery",
    "messages in flight at RDY 0": "a consumer set RDY to 0 and still holds messages",
    "RDY is raised while messages wait": "a consumer raised its RDY while messages waited",
    "RDY is lowered below the messages in flight": "a consumer lowered its RDY below the number that it holds",
    "FIN of a message that timed out": "a consumer finished a message after its timeout",
    "REQ of a message that timed out": "a consumer requeued a message after its timeout",
    "TOUCH of a message that timed out": "a consumer touched a message after its timeout",
    "FIN of a touched message": "a consumer finished a message after it had touched it",
    "FIN of a message of a paused channel": "a consumer finished a message while its channel was paused",
    "REQ while paused": "a consumer requeued a message while its channel was paused",
    "FIN while a commit runs": "a FIN arrived while a commit was running",
    "PUB while a commit runs": "a publish arrived while a commit was running",
    "PUB to a paused topic": "a message was published to a topic that was paused",
    "PUB to a topic without channels": "a message was published to a topic without channels",
    "DPUB to a paused topic": "a deferred message was published to a topic that was paused",
    "SUB to a channel with messages": "a consumer subscribed to a channel in which messages waited",
    "SUB to a paused channel": "a consumer subscribed to a channel that was paused",
    "SUB while another holds messages": "a consumer subscribed while another one held messages",
    "a third delivery": "a message was delivered for the third time",
    "two consumers hold messages of a channel": "two consumers of a channel held messages at the same time",
    "abandoned messages come back": "messages of a lost connection were delivered to another consumer",
    "a channel is emptied with messages in flight": "a channel was emptied while consumers held messages",
    "a channel is deleted with messages in flight": "a channel was deleted while consumers held messages",
    "a channel is emptied with messages of a lost connection": "a lost connection had messages when it was emptied",
    "a channel is deleted with messages of a lost connection": "a lost connection had messages when it was deleted",
    "a topic is deleted with a consumer": "a topic was deleted while a consumer was subscribed",
    "a topic is emptied with messages": "a topic was emptied while messages waited in it",
    "backoff waits": "a consumer was in backoff",
    "backoff probes": "a consumer waited for the result of a test message",
    "a test message is in flight at the end of a connection": "a connection ended while its test message was handled",
    "more connections than max_in_flight": "a consumer had more connections than messages that it may hold",
    "a full disk with messages in flight": "a disk was full while consumers held messages",
    "SUB waits for a grant": "a grant had expired at a SUB",
    "a publish waits for a grant": "a grant had expired at a publish",
    "a grant was taken away": "a command was refused because a grant was not renewed, or does not allow it",
    "a refused publish": "a broker refused a publish",
    "a session of a client without a handshake": "a client subscribed without IDENTIFY",
}


def never(reached: object) -> list[str]:
    """Return the sentences of the states that are not in ``reached``, a container of names."""
    return [sentence for name, sentence in SOMETIMES.items() if name not in reached]  # type: ignore[operator]
