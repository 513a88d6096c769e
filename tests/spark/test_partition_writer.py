from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from nsqkit import NotConnected, OptionError
from nsqkit.errors import AuthFailed, BadMessage, ConnectionLost
from nsqkit.producer.policy import rank
from nsqkit.spark import partition_writer, writer_options
from nsqkit.spark.partition_writer import WriteStats, write_partition
from nsqkit.spark.publish_plan import Publish
from nsqkit.spark.writer_options import WriterOptions
from nsqkit.testing import AuthNsqdServer, NsqdServer, TLSNsqdServer


def make_batch(bodies: list[bytes], **columns: Any) -> Any:
    arrays = [pa.array(bodies, pa.binary()), *map(pa.array, columns.values())]
    return pa.RecordBatch.from_arrays(arrays, names=["body", *columns])


def write(nsqds: list[NsqdServer], batches: Any, partition: int = 0, **options: Any) -> WriteStats:
    addresses = tuple(nsqd.tcp_address for nsqd in nsqds)
    return write_partition(
        WriterOptions(**{"topic": "t", "nsqd_tcp_addresses": addresses, **options}), addresses, partition, batches
    )


def bodies(nsqd: NsqdServer, topic: str = "t") -> list[bytes]:
    return [message.body for message in nsqd.messages(topic)]


@pytest.fixture
def nsqds(make_nsqd: Callable[..., NsqdServer]) -> list[NsqdServer]:
    return [make_nsqd() for _ in range(3)]


def test_all_rows_arrive_in_their_order(nsqd: NsqdServer):
    rows = [b"%d" % n for n in range(250)]
    stats = write([nsqd], [make_batch(rows[:120]), make_batch([]), make_batch(rows[120:])], 7, mpub_batch=50)
    assert bodies(nsqd) == rows
    assert len(nsqd.journal.commands("MPUB")) == 6
    assert stats == WriteStats(partition=7, message_count=250, byte_count=6 * 4 + 250 * 4 + len(b"".join(rows)))


def test_a_partition_without_rows_publishes_nothing(nsqd: NsqdServer):
    assert write([nsqd], []) == WriteStats(partition=0, message_count=0, byte_count=0)
    assert bodies(nsqd) == []


@pytest.mark.parametrize("partition", [0, 1, 4])
def test_commands_go_to_each_nsqd_in_turn_from_that_of_the_partition_on(nsqds: list[NsqdServer], partition: int):
    write(nsqds, [make_batch([b"0", b"1", b"2", b"3"])], partition, mpub_batch=1)
    first = partition % 3
    assert [bodies(nsqd) for nsqd in (*nsqds[first:], *nsqds[:first])] == [[b"0", b"3"], [b"1"], [b"2"]]


@pytest.mark.parametrize("partition", [0, 1])
def test_a_key_has_one_nsqd_in_all_partitions(nsqds: list[NsqdServer], partition: int):
    keys = [f"key-{n}" for n in range(30)]
    write(nsqds, [make_batch([key.encode() for key in keys], key=keys)], partition, partition_by="key")
    addresses = tuple(nsqd.tcp_address for nsqd in nsqds)
    for n, nsqd in enumerate(nsqds):
        assert bodies(nsqd) == [key.encode() for key in keys if rank(key.encode(), addresses)[0] == n]


def test_rows_with_a_delay_are_deferred(nsqd: NsqdServer):
    write([nsqd], [make_batch([b"now", b"later"], deferMs=[0, 60_000])])
    (command,) = nsqd.journal.commands("DPUB")
    assert (command.params, command.body) == (("t", "60000"), b"later")
    assert bodies(nsqd) == [b"now", b"later"]


def test_rows_of_an_nsqd_that_is_down_go_to_the_others(nsqds: list[NsqdServer]):
    nsqds[0].stop()
    write(nsqds, [make_batch([b"0", b"1", b"2"])], mpub_batch=1)
    assert sorted(bodies(nsqds[1]) + bodies(nsqds[2])) == [b"0", b"1", b"2"]


def test_a_task_without_any_nsqd_fails(nsqd: NsqdServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer_options, "CONNECT_TIMEOUT", 0.1)
    nsqd.stop()
    with pytest.raises(NotConnected, match=nsqd.tcp_address):
        write([nsqd], [make_batch([b"a"])])


def test_a_command_whose_answer_was_lost_is_sent_again(nsqd: NsqdServer):
    with nsqd.faults.close_at(0, command="OK"):
        write([nsqd], [make_batch([b"a", b"b"])])
    assert bodies(nsqd) == [b"a", b"b"] * 2


def test_a_task_fails_when_the_answer_is_lost_each_time(nsqd: NsqdServer):
    with nsqd.faults.reset(command="OK"), pytest.raises(ConnectionLost):
        write([nsqd], [make_batch([b"a", b"b"])])
    assert bodies(nsqd) == [b"a", b"b"] * writer_options.PUBLISH_ATTEMPTS


@pytest.mark.nsqd(max_msg_size=10)
def test_the_limit_of_an_nsqd_is_in_the_error(nsqd: NsqdServer):
    with pytest.raises(BadMessage, match="11 > 10"):
        write([nsqd], [make_batch([b"x" * 11])])


def test_no_row_of_a_batch_with_a_wrong_one_is_published(nsqd: NsqdServer):
    with pytest.raises(OptionError, match="body of row 2 has 0 bytes"):
        write([nsqd], [make_batch([b"a", b"b", b""])], mpub_batch=1)
    assert bodies(nsqd) == []


def test_an_error_of_the_rows_ends_the_task(nsqd: NsqdServer):
    def rows() -> Iterator[Any]:
        yield make_batch([b"a"])
        raise RuntimeError("the task is cancelled")

    with pytest.raises(RuntimeError, match="the task is cancelled"):
        write([nsqd], rows())
    nsqd.wait_for(lambda: not nsqd.connections)


def test_heartbeats_are_answered_while_the_task_waits_for_rows(nsqd: NsqdServer):
    def has_answers(count: int) -> bool:
        return len(nsqd.journal.commands("NOP")) == count

    def rows() -> Iterator[Any]:
        yield make_batch([b"a"])
        for count in range(1, 6):
            nsqd.clock.advance(30)
            nsqd.wait_for(partial(has_answers, count))
        yield make_batch([b"b"])

    write([nsqd], rows())
    assert bodies(nsqd) == [b"a", b"b"]
    assert len(nsqd.journal.commands("IDENTIFY")) == 1


def test_rows_go_through_tls_and_compression(nsqd_mtls: TLSNsqdServer):
    options = {
        "tls_v1": True,
        "tls_root_ca_file": nsqd_mtls.ca_file,
        "tls_cert": nsqd_mtls.client_certificate,
        "tls_key": nsqd_mtls.client_key,
        "deflate": True,
    }
    write([nsqd_mtls], [make_batch([b"a", b"b"])], connection=options)
    assert bodies(nsqd_mtls) == [b"a", b"b"]


def test_a_refused_secret_ends_the_task_at_once(nsqd_auth: AuthNsqdServer):
    with pytest.raises(AuthFailed) as caught:
        write([nsqd_auth], [make_batch([b"a"])], connection={"auth_secret": "hush"})
    assert "hush" not in str(caught.value)


class Answers:
    """A portal whose answers come when they are waited for."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def start_task_soon(self, function: Any, publish: Any) -> Future[None]:
        name, events = publish.bodies[0].decode(), self.events
        events.append(f"send {name}")

        class Answer(Future[None]):
            def result(self, timeout: float | None = None) -> None:
                events.append(f"answer {name}")

        return Answer()


@pytest.mark.parametrize(("limit", "value"), [("OUTSTANDING_COUNT_MAX", 2), ("OUTSTANDING_BYTES_MAX", 20)])
def test_the_commands_without_an_answer_are_limited(monkeypatch: pytest.MonkeyPatch, limit: str, value: int):
    monkeypatch.setattr(partition_writer, limit, value)
    portal: Any = Answers()
    outgoing = partition_writer._Outgoing(portal, None)  # type: ignore[arg-type]
    for body in (b"a", b"b", b"c"):
        outgoing.send(Publish("t", None, 0, [body]))
    outgoing.wait_all()
    assert portal.events == ["send a", "send b", "answer a", "send c", "answer b", "answer c"]
