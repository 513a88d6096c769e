from __future__ import annotations

from random import Random

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.testing.inject import inject, messages, publish
from nsqkit.testing.kept_memory import KeptMemory

NOW = 1_700_000_000 * 10**9
HOUR = 3600


def restarted(broker: Broker, memory: KeptMemory, now_ns: int = NOW) -> tuple[Broker, KeptMemory]:
    memory.save(broker)
    return started(broker.options, memory, now_ns)


def started(options: BrokerOptions, before: KeptMemory | None = None, now_ns: int = NOW) -> tuple[Broker, KeptMemory]:
    memory = KeptMemory(options, before)
    broker = Broker(options, Random(1), memory)
    memory.restore(broker, now_ns)
    broker.settle(now_ns)
    return broker, memory


def filled(broker: Broker) -> None:
    topic = broker.topics.get_or_create(b"t")
    topic.channel(b"c", NOW)
    publish(broker, NOW, "t", b"one", b"two", b"three")
    publish(broker, NOW, "lonely", b"four")


def bodies(broker: Broker, topic: str, channel: str | None = None) -> list[bytes]:
    return [message.body for message in messages(broker, topic, channel)]


def test_messages_wait_again_after_each_restart() -> None:
    broker, memory = started(BrokerOptions())
    filled(broker)
    for _ in range(3):
        broker, memory = restarted(broker, memory)
        assert bodies(broker, "t", "c") == [b"one", b"two", b"three"]
        assert bodies(broker, "lonely") == [b"four"]
    assert broker.topics[b"t"].channels[b"c"].message_count == 0


def test_messages_beyond_the_memory_queue_are_kept_too() -> None:
    broker, memory = started(BrokerOptions(mem_queue_size=1))
    filled(broker)
    broker, memory = restarted(broker, memory)
    assert sorted(bodies(broker, "t", "c")) == [b"one", b"three", b"two"]


def test_attempts_and_ids_are_kept_and_new_ids_are_others() -> None:
    broker, memory = started(BrokerOptions())
    broker.topics.get_or_create(b"t").channel(b"c", NOW)
    message_id = inject(broker, NOW, "t", b"x", channel="c", attempts=7)
    publish(broker, NOW, "t", b"y")
    broker, memory = restarted(broker, memory)
    publish(broker, NOW, "t", b"z")
    found = messages(broker, "t", "c")
    assert (found[0].id, found[0].attempts) == (message_id, 7)
    assert len({message.id for message in found}) == 3


def test_deferred_messages_are_due_after_a_restart() -> None:
    broker, memory = started(BrokerOptions())
    broker.topics.get_or_create(b"t").channel(b"c", NOW)
    publish(broker, NOW, "t", b"later", defer=HOUR)
    assert len(broker.topics[b"t"].channels[b"c"].deferred) == 1
    broker, memory = restarted(broker, memory)
    assert len(broker.topics[b"t"].channels[b"c"].queue) == 1


def test_deferred_messages_keep_their_time_if_the_option_is_set() -> None:
    broker, memory = started(BrokerOptions(keep_deferred=True))
    topic = broker.topics.get_or_create(b"t")
    topic.channel(b"c", NOW)
    publish(broker, NOW, "t", b"later", defer=HOUR)
    publish(broker, NOW, "lonely", b"later", defer=HOUR)
    due_ns = NOW + HOUR * 10**9
    (message,) = messages(broker, "t", "c")
    times = {message.id: due_ns}
    for _ in range(2):
        broker, memory = restarted(broker, memory)
        assert memory.deferred_times(b"t:c", ephemeral=False).by_id == times
        assert list(memory.deferred_times(b"lonely", ephemeral=False).by_id.values()) == [HOUR * 10**9]
    assert memory.deferred_times(b"t:c", ephemeral=False).has_file


def test_paused_and_ephemeral_as_nsqd_keeps_them() -> None:
    broker, memory = started(BrokerOptions())
    filled(broker)
    broker.topics[b"t"].pause()
    broker.topics[b"t"].channels[b"c"].pause()
    broker.topics.get_or_create(b"e#ephemeral")
    broker.topics[b"t"].channel(b"e#ephemeral", NOW)
    publish(broker, NOW, "e#ephemeral", b"x")
    broker, memory = restarted(broker, memory)
    assert sorted(broker.topics) == [b"lonely", b"t"]
    assert list(broker.topics[b"t"].channels) == [b"c"]
    assert broker.topics[b"t"].paused
    assert broker.topics[b"t"].channels[b"c"].paused


def test_deleted_channel_does_not_come_back() -> None:
    broker, memory = started(BrokerOptions())
    filled(broker)
    broker.topics[b"t"].remove_channel(b"c").delete()
    broker, memory = restarted(broker, memory)
    assert bodies(broker, "t") == []
    broker.topics[b"t"].channel(b"c", NOW)
    assert bodies(broker, "t", "c") == []
