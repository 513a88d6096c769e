"""JSON documents in commands and answers: IDENTIFY at both ends and for nsqlookupd, AUTH, HTTP answers of daemons.

The mode selects the document. A document that is read can be written, and is then read as the same value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

from nsqkit.broker.core.broker import Broker
from nsqkit.errors import BrokerError, ProtocolError
from nsqkit.http.answers import Refusal, decode_document, read_message
from nsqkit.lookup.responses import decode_names, decode_nodes, decode_registered_nodes, tcp_address
from nsqkit.wire import auth, identify, lookup
from tests.fuzz.broker_session import OPTIONS
from tests.fuzz.consumer_session import ANSWER
from tests.fuzz.harness import pack
from tests.fuzz.lookupd_session import NODE

LIMITS: Final = Broker(OPTIONS, Random(0)).sessions.limits
_REQUEST: Final = identify.IdentifyRequest(client_id="c", feature_negotiation=True, heartbeat_interval=1000)
_NODE_JSON: Final = lookup.encode_identify(NODE)[len(b"IDENTIFY\n1234") :]
_PRODUCERS: Final = b'{"producers":[' + _NODE_JSON[:-1] + b',"topics":["t"],"tombstones":[true]}]}'


def _identify(body: bytes) -> None:
    request = identify.decode_request(body)
    assert identify.decode_request(identify.encode_request(request)) == request
    grant = identify.negotiate(request, LIMITS)
    identify.decode_response(identify.encode_response(grant, LIMITS))


def _answer(body: bytes) -> None:
    identify.decode_response(body)


def _node(body: bytes) -> None:
    node = lookup.decode_node(body)
    assert lookup.decode_node(lookup.encode_identify(node)[len(b"IDENTIFY\n1234") :]) == node


def _info(body: bytes) -> None:
    info = lookup.decode_info(body)
    assert lookup.decode_info(lookup.encode_info(info)) == info


def _auth(body: bytes) -> None:
    answer = auth.decode_answer(body)
    assert auth.decode_answer(auth.encode_answer(answer)) == answer


def _response(body: bytes) -> None:
    json.dumps(read_message(body))
    document = decode_document(body)
    for decode in READERS:
        try:
            decode(document)
        except ValueError:
            pass


READERS: Final[list[Callable[[dict[str, Any]], Any]]] = [
    lambda document: [tcp_address(node) for node in decode_nodes(document)],
    lambda document: [tcp_address(found.node) for found in decode_registered_nodes(document)],
    lambda document: decode_names(document, "topics"),
]
KINDS: Final = (_identify, _answer, _node, _info, _auth, _response)
SEEDS: Final = [
    pack(body, mode=mode)
    for mode, body in enumerate(
        (
            identify.encode_request(_REQUEST),
            ANSWER + b',"deflate":true}',
            _NODE_JSON,
            b'{"tcp_port":4160,"version":"1"}',
            b'{"identity":"i","identity_url":"u","permission_count":3}',
            _PRODUCERS,
            *(b"[" * 5000, b"[" * 5000, b"[" * 5000, b'{"tcp_port":1e400}', b'{"identity":"\\ud800"}'),
            b'{"status_code":404,"status_txt":"NOT_FOUND","data":null}',
        )
    )
]
WORDS: Final = [b"null", b"true", b"1e5", b"\\ud800", *(name.encode() for name in _REQUEST.__annotations__)]
CALLS_PER_UNIT: Final = 40


def run(data: bytes) -> int:
    mode, body = data[3:4], data[5:]
    try:
        KINDS[mode[0] % len(KINDS) if mode else 0](body)
    except (BrokerError, ProtocolError, Refusal):
        pass
    except ValueError as error:
        if "no JSON object" not in str(error):
            raise
    return len(body)
