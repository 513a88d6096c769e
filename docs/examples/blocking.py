import signal

from nsqkit import BlockingConsumer, BlockingMessage, BlockingProducer

with BlockingProducer("127.0.0.1:4150") as producer:
    producer.publish("orders", b"one")


def handle(message: BlockingMessage) -> None:
    print(message.body, message.attempts, flush=True)


with BlockingConsumer(
    "orders",
    "billing",
    nsqd_tcp_addresses=["127.0.0.1:4150"],
    stop_signals=[signal.SIGTERM, signal.SIGINT],
) as consumer:
    consumer.run(handle)
