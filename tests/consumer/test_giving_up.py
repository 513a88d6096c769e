from __future__ import annotations

from types import SimpleNamespace

import pytest

from nsqkit.consumer.giving_up import DeadLetter, discard
from nsqkit.errors import OptionError
from tests.peers import BACKENDS

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]


class Publisher:
    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []

    async def publish(self, topic: str, body: bytes, /) -> None:
        self.published.append((topic, body))


async def test_a_dead_letter_is_published_to_its_topic():
    publisher = Publisher()
    await DeadLetter(publisher, "dead")(SimpleNamespace(body=b"x"))  # type: ignore[arg-type]
    assert publisher.published == [("dead", b"x")]


async def test_discarding_is_doing_nothing():
    discard(SimpleNamespace())  # type: ignore[arg-type]


async def test_a_wrong_topic_is_refused_when_the_policy_is_made():
    with pytest.raises(OptionError, match="topic name"):
        DeadLetter(Publisher(), "not a topic")


async def test_what_cannot_publish_is_refused():
    with pytest.raises(OptionError) as caught:
        DeadLetter("producer", "dead")  # type: ignore[arg-type]
    assert str(caught.value) == "producer is 'producer'; allowed is a Producer"
