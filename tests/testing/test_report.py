from __future__ import annotations

from nsqkit import BlockingProducer
from nsqkit.testing.report import sections
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer


def test_sections_have_the_journal_and_the_faults() -> None:
    with NsqdServer(seed=7) as server:
        assert list(sections([server])) == []
        with BlockingProducer(server.tcp_address) as producer:
            producer.publish("t", b"x")
        server.faults.drop(command="PUB", topic="u")
        (title, journal), (faults_title, faults) = sections([server])
        assert title == f"nsqd {server.tcp_address}: the last 50 entries of the journal"
        assert "PUB" in journal
        assert faults_title == f"nsqd {server.tcp_address}: faults"
        assert faults.startswith("seed 7\n")
        assert "drop" in faults
    assert len(list(sections([server]))) == 2


def test_sections_have_the_faults_of_an_nsqlookupd() -> None:
    with NsqlookupdServer(seed=7) as server:
        assert list(sections([server])) == []
        server.faults.status(500, times=1)
        ((title, faults),) = sections([server])
        assert title == f"nsqlookupd {server.tcp_address}: faults"
        assert faults.startswith("seed 7\n")
