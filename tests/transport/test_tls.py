from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import ProtocolError
from nsqkit.transport.tls import TLS
from nsqkit.wire.compression import Deflate, Snappy
from tests.certificates import HOST, authority, client_context, connected, exchange, server_context
from tests.renegotiating import RenegotiatingServer

ALERT = 21
CLOSE_NOTIFY = 0
TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
VERSIONS = pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])


def decode(tls: TLS, data: bytes) -> bytes:
    return b"".join(tls.decode(data))


# The length of a handshake varies, so the cuts do not depend on it.
SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=5)


def cut(stream: bytes, sizes: list[int]) -> Iterator[bytes]:
    for size in cycle(sizes):
        if not stream:
            return
        piece, stream = stream[:size], stream[size:]
        yield piece


def new_pair(version: ssl.TLSVersion | None = None, certificate: str | None = None) -> tuple[TLS, TLS]:
    """Return both ends before the handshake."""
    context = client_context(certificate)
    if version is not None:
        context.maximum_version = version
    return TLS(server_context()), TLS(context, server_hostname=HOST)


# ---- bytes ------------------------------------------------------------------------------------------------------


@VERSIONS
def test_plain_bytes_wait_for_handshake(version):
    server, client = new_pair(version)
    hello = client.encode(b"hello")
    assert b"hello" not in hello
    assert server.encode(b"OK") == server.encode(b"!") == b""
    assert decode(server, hello) == b""
    assert exchange(server, client) == (b"hello", b"OK!")
    assert server.is_ready
    assert client.is_ready


@VERSIONS
@given(st.binary(max_size=60), st.binary(max_size=60), SIZES)
def test_bytes_pass_in_any_pieces(version, from_client, from_server, sizes):
    server, client = new_pair(version)
    got = {server: b"", client: b""}
    on_the_way = {server: client.encode(from_client), client: server.encode(from_server)}
    while any(on_the_way.values()):
        for receiver, sender in ((server, client), (client, server)):
            stream, on_the_way[receiver] = on_the_way[receiver], b""
            for piece in cut(stream, sizes):
                got[receiver] += decode(receiver, piece)
                on_the_way[sender] += receiver.encode(b"")
    assert got == {server: from_client, client: from_server}


@pytest.mark.parametrize("size", [1, 16384, 16385, 1_000_000])
def test_write_of_any_size_is_decoded_as_one_piece(size):
    server, client = connected()
    plain = os.urandom(size)
    assert [*client.decode(server.encode(plain))] == [plain]
    assert [*server.decode(client.encode(plain))] == [plain]
    assert not server.has_output
    assert not client.has_output


def test_incomplete_record_yields_nothing():
    server, client = connected()
    record = client.encode(b"hello")
    assert [*server.decode(record[:-1])] == []
    assert [*server.decode(record[-1:])] == [b"hello"]


def test_empty_write_sends_nothing():
    server, _ = connected()
    assert server.encode(b"") == b""


@pytest.mark.parametrize("make", [Snappy, lambda: Deflate(6)], ids=["snappy", "deflate"])
@given(st.lists(st.binary(max_size=50), max_size=5), SIZES)
def test_compression_inside_tls_passes_in_any_pieces(make, writes, sizes):
    server, client = connected()
    sender, receiver = make(), make()
    stream = b"".join(client.encode(sender.encode(write)) for write in writes)
    got = b""
    for piece in cut(stream, sizes):
        for plain in server.decode(piece):
            got += b"".join(receiver.decode(plain))
    assert got == b"".join(writes)


def test_bytes_wait_for_end_of_renegotiation():
    server = RenegotiatingServer(client_context())
    assert decode(server.client, server.renegotiate()) == b""
    hello = server.client.encode(b"NOP\n")
    assert server.client.encode(b"RDY 1\n") == b""
    assert server.exchange(hello) == b"NOP\nRDY 1\n"
    assert server.exchange(server.client.encode(b"FIN")) == b"FIN"


# ---- the end ----------------------------------------------------------------------------------------------------


@VERSIONS
def test_either_side_can_close_first(version):
    server, client = new_pair(version)
    exchange(server, client)
    assert decode(server, client.encode(b"last words") + client.end()) == b"last words"
    assert server.at_end
    assert decode(client, server.encode(b"mine") + server.end()) == b"mine"
    assert client.at_end


def test_data_after_close_are_ignored():
    server, client = connected()
    end, more = client.end(), connected()[1].encode(b"more")
    assert decode(server, end + more) == b""
    assert server.at_end


def test_close_during_handshake_sends_nothing():
    server, _ = new_pair()
    assert server.end() == b""


# ---- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"NOP\nNOP\n", b"GET / HTTP/1.0\r\n\r\n", b"\x16\xff\x03\x00\x01x", bytes(5)])
def test_other_protocol_is_refused_without_alert(data):
    server, _ = new_pair()
    assert decode(server, data[:4]) == b""
    with pytest.raises(ProtocolError, match="tls: first record does not look like a TLS handshake"):
        decode(server, data[4:])
    assert server.head == data[:5]
    assert server.encode(b"what waits") == b""


def test_invalid_hello_is_answered_by_alert():
    server, _ = new_pair()
    with pytest.raises(ProtocolError, match="tls: unexpected message"):
        decode(server, b"\x16\x03\x01\x00\x05abcde")
    assert server.has_output
    assert server.encode(b"")[0] == ALERT


@VERSIONS
def test_client_without_required_certificate_gets_alert(version):
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    client_rules = client_context()
    client_rules.maximum_version = version
    server, client = TLS(context), TLS(client_rules, server_hostname=HOST)
    with pytest.raises(ProtocolError, match="tls: client didn't provide a certificate"):
        exchange(server, client)
    assert not server.is_ready
    assert client.common_name == client.version == client.cipher_suite == client.negotiated_protocol == ""


def test_unknown_client_is_refused_with_reason():
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    server, client = TLS(context), TLS(client_context("stranger"), server_hostname=HOST)
    with pytest.raises(ProtocolError, match="tls: failed to verify client certificate: unable to get local"):
        exchange(server, client)


def test_unknown_server_is_refused_with_alert():
    server = TLS(server_context())
    client = TLS(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), server_hostname=HOST)
    with pytest.raises(ProtocolError, match="tls: failed to verify server certificate: "):
        exchange(server, client)
    assert not server.is_ready


def test_data_before_damaged_record_are_decoded():
    server, client = connected()
    good, bad = client.encode(b"good"), client.encode(b"bad")
    pieces = server.decode(good + bad[:-1] + bytes([bad[-1] ^ 1]))
    assert next(pieces) == b"good"
    alert = server.encode(b"never sent")
    with pytest.raises(ProtocolError, match="tls: decryption failed or bad record mac"):
        next(pieces)
    with pytest.raises(ProtocolError, match=r"tls: .*bad record mac"):
        decode(client, alert)
    assert server.encode(b"nor this") == server.end() == b""


def test_failed_write_is_error_of_next_read():
    server, client = connected()
    data = server.encode(b"data")
    client.end()
    assert client.encode(b"x") == client.encode(b"y") == b""
    pieces = client.decode(data)
    assert next(pieces) == b"data"
    with pytest.raises(ProtocolError, match="tls: protocol is shutdown"):
        next(pieces)


# ---- reported values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "ciphers", "shown"),
    [
        (TLS_1_2, "ECDHE+AES128+AESGCM", ("TLS1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")),
        (TLS_1_2, "ECDHE+AES256+AESGCM", ("TLS1.2", f"Unknown {0xC02C}")),
        (TLS_1_3, "DEFAULT", ("TLS1.3", f"Unknown {0x1302}")),
    ],
)
def test_version_and_cipher_suite_have_nsqds_names(version, ciphers, shown):
    context = client_context()
    context.minimum_version = context.maximum_version = version
    context.set_ciphers(ciphers)
    server, client = TLS(server_context()), TLS(context, server_hostname=HOST)
    assert (server.version, server.cipher_suite) == ("", "")
    exchange(server, client)
    assert (server.version, server.cipher_suite) == shown
    assert (client.version, client.cipher_suite) == shown


def test_common_name_of_client():
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority().cert_pem.bytes().decode())
    server, client = TLS(context), TLS(client_context("client"), server_hostname=HOST)
    assert server.common_name == ""
    exchange(server, client)
    assert server.common_name == "client-one"
    assert connected()[0].common_name == ""


def test_negotiated_protocol():
    theirs, ours = client_context(), server_context()
    theirs.set_alpn_protocols(["nsq"])
    ours.set_alpn_protocols(["nsq"])
    server, client = TLS(ours), TLS(theirs, server_hostname=HOST)
    exchange(server, client)
    assert server.negotiated_protocol == client.negotiated_protocol == "nsq"
    assert connected()[0].negotiated_protocol == ""
