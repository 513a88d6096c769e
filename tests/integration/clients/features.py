"""The features of NSQ that each client has, in the versions that the tests run.

A client is tested with all its features, and each missing feature is listed with the reason. TABLE has a row for each
feature and a column for each client; a cell is ``yes``, or ``no`` with an entry of LACKS. A test calls
``clients_with``: it runs for each ``yes``, and is reported as skipped, with the reason, for each ``no``.
"""

from __future__ import annotations

import pytest

# Publish is PUB, MPUB and DPUB. A message is requeued at once or with a delay. It times out after the broker's
# --msg-timeout, or after the `msg_timeout` of IDENTIFY. A certificate is the client's own, which the broker demands.
# Large messages have 200,000 bytes, alone or over TLS, and with compression.
TABLE = """
                  pynsq  ansq  gnsq  nsqjs
publish            yes    yes   yes   yes
subscribe          yes    yes   yes   yes
requeue            yes    yes   yes   yes
requeue-later      yes    yes   yes   yes
timeout            yes    no    yes   yes
msg_timeout        yes    yes   no    yes
touch              yes    yes   yes   yes
lookupd            yes    yes   yes   yes
deflate            yes    no    yes   yes
snappy             yes    no    yes   yes
tls                yes    no    yes   yes
tls+deflate        yes    no    yes   yes
tls+snappy         yes    no    yes   yes
certificate        yes    no    yes   yes
auth               yes    no    yes   yes
large              yes    yes   yes   yes
large+compressed   no     no    yes   yes
"""

LACKS = {
    "pynsq": {
        # It raises an OSError without an errno, where tornado looks for EWOULDBLOCK. With nsqd, which writes the head
        # of a chunk and its body apart, snappy is luck for that reason, and compression over TLS fails.
        "large+compressed": "closes a connection where one read brings too little to decompress to anything",
    },
    "ansq": {
        "timeout": "requests its own timeout in each IDENTIFY, a minute by default",
        "deflate": "raises NotImplementedError where a broker grants deflate",
        "snappy": "raises NotImplementedError where a broker grants snappy",
        "tls": "raises NotImplementedError where a broker grants TLS",
        "tls+deflate": "has neither",
        "tls+snappy": "has neither",
        "certificate": "has no TLS",
        "auth": "can send AUTH, but nothing sets the `is_authorized` without which it refuses to send SUB or PUB",
        "large+compressed": "has no compression",
    },
    "gnsq": {
        "msg_timeout": "sends no `msg_timeout` in IDENTIFY",
    },
}


def read_table() -> dict[str, dict[str, bool]]:
    """Return whether a client has a feature, by both names."""
    head, *rows = (line.split() for line in TABLE.strip().splitlines())
    columns = enumerate(head, start=1)
    return {client: {row[0]: row[index] == "yes" for row in rows} for index, client in columns}


HAS = read_table()


def clients_with(*features: str) -> pytest.MarkDecorator:
    """Run a test for each client that has each of ``features``, by a pair of client and feature."""
    return pytest.mark.parametrize(
        ("client", "feature"),
        [
            pytest.param(client, feature, id=f"{client}-{feature}", marks=_marks(client, feature))
            for client in HAS
            for feature in features
        ],
    )


def _marks(client: str, feature: str) -> list[pytest.MarkDecorator]:
    if HAS[client][feature]:
        return []
    return [pytest.mark.skip(reason=f"{client}: {LACKS[client][feature]}")]
