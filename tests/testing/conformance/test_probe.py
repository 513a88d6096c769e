from __future__ import annotations

import socket
import threading
from contextlib import suppress

import attrs
import pytest

from nsqkit.testing.conformance.probe import CHANNEL, NO_HTTP
from nsqkit.testing.conformance.received import Mismatch, Skipped
from nsqkit.testing.conformance.run import Target
from nsqkit.transport.address import join_address
from nsqkit.wire.names import is_ephemeral, is_valid_name
from tests.testing.conformance.brokers import mute_broker, prepared_broker, right_broker


def topics(target: Target) -> list[str]:
    with target.probe() as probe:
        return [topic["topic_name"] for topic in probe.http("GET", "/stats?format=json").document()["topics"]]


@pytest.mark.parametrize("has_http", [True, False], ids=["http", "no-http"])
def test_all_topics_of_a_case_are_removed_and_no_other(has_http: bool):
    with right_broker() as target, target.probe() as probe:
        probe.publish(b"kept", b"x")
        used = target if has_http else attrs.evolve(target, http_address="")
        with used.probe() as case:
            case.publish(case.topic(), b"x")
            case.consumer(case.topic())
            case.topic()
        probe.wait_for_stats({"topics": ["kept"]}, lambda: {"topics": topics(target)})


@pytest.mark.parametrize("length", [None, 64], ids=["usual", "longest"])
def test_names_are_valid_and_unique(length: int | None):
    with mute_broker() as target, attrs.evolve(target, http_address="").probe() as probe:
        names = {probe.topic(length) for _ in range(3)}
    assert len(names) == 3
    assert all(is_valid_name(name) and is_ephemeral(name) for name in names)
    assert {len(name) for name in names} == {length or 41}


def test_numbers_of_options_are_those_of_the_broker():
    with right_broker(max_msg_size=5) as target, target.probe() as probe:
        assert probe.option("max_msg_size") == 5
        with pytest.raises(Skipped, match=r"^the broker does not answer GET /config/tcp_address$"):
            probe.option("tcp_address")
        assert probe.option("tcp_address", 7) == 7
    with mute_broker() as target, attrs.evolve(target, http_address="").probe() as probe:
        assert probe.option("max_msg_size", 7) == 7


def test_stats_of_unknown_names_are_none():
    with right_broker() as target, target.probe() as probe:
        assert probe.topic_stats(b"t") is None
        assert probe.channel_stats(b"t") is None
        probe.post("/topic/create", b"t")
        assert probe.topic_stats(b"t") is not None
        assert probe.channel_stats(b"t", CHANNEL) is None


def test_stats_that_stay_different_are_a_mismatch():
    with right_broker() as target, attrs.evolve(target, timeout=1.5).probe() as probe:
        with pytest.raises(Mismatch, match=r"expected /stats with {'depth': 1}; came {'depth': None}"):
            probe.wait_for_stats({"depth": 1}, lambda: probe.topic_stats(b"t"))


def test_without_an_http_address_a_request_skips_the_case():
    with mute_broker() as target, attrs.evolve(target, http_address="").probe() as probe:
        with pytest.raises(Skipped) as raised:
            probe.http("GET", "/ping")
    assert str(raised.value) == NO_HTTP


def test_other_answers_of_http_are_mismatches():
    with right_broker() as target, target.probe() as probe:
        with pytest.raises(Mismatch, match="expected 404 b''; came 200 b'OK'"):
            probe.expect_http("GET", "/ping", 404)
        with pytest.raises(Mismatch, match="expected a JSON object; came 200 b'OK'"):
            probe.http("GET", "/ping").document()
    with prepared_broker(b"HELLO\r\n") as target:
        with attrs.evolve(target, http_address=target.tcp_address).probe() as probe:
            with pytest.raises(Mismatch, match="expected an answer; came BadStatusLine: HELLO"):
                probe.http("GET", "/ping")


def test_early_is_a_mismatch():
    with mute_broker() as target, target.probe() as probe:
        probe.check_not_early(0.96, 1.0)
        with pytest.raises(Mismatch, match=r"expected a delay of 1\.0 s; came 0\.900 s"):
            probe.check_not_early(0.9, 1.0)
        assert probe.within(1.0) > 6.0
        assert probe.elapsed()() >= 0


def http_answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def test_documents_that_python_cannot_read_are_mismatches():
    with prepared_broker(http_answer(b"[" * 100_000), http_answer(b"9" * 5000), http_answer(b"9" * 5000)) as target:
        with attrs.evolve(target, http_address=target.tcp_address).probe() as probe:
            with pytest.raises(Mismatch, match=r"^expected a JSON object; came 200 b'\[\["):
                probe.http("GET", "/stats?format=json").document()
            with pytest.raises(Mismatch, match=r"^expected a JSON object; came 200 b'99"):
                probe.http("GET", "/stats?format=json").document()
            assert probe.option("max_msg_size", 7) == 7


def test_answer_without_an_end_is_a_mismatch():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send_endlessly() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b"x")

        thread = threading.Thread(target=send_endlessly)
        thread.start()
        address = join_address(*server.getsockname())
        with Target(tcp_address=address, http_address=address, timeout=1.0).probe() as probe:
            with pytest.raises(Mismatch, match=r"^expected an answer; came no complete answer within 1 s$"):
                probe.http("GET", "/ping")
        thread.join()
