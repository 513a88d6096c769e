from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import BadBody, IdentifyFailed, ProtocolError
from nsqkit.wire.identify import (
    NS_PER_MS,
    Grant,
    IdentifyAnswer,
    IdentifyLimits,
    IdentifyRequest,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    negotiate,
)
from tests import strategies

S = 1_000_000_000

LIMITS = IdentifyLimits(
    max_rdy_count=2500,
    msg_timeout_ns=60 * S,
    max_msg_timeout_ns=900 * S,
    heartbeat_interval_ns=30 * S,
    max_heartbeat_interval_ns=60 * S,
    output_buffer_size=16384,
    max_output_buffer_size=65536,
    output_buffer_timeout_ns=250 * NS_PER_MS,
    min_output_buffer_timeout_ns=25 * NS_PER_MS,
    max_output_buffer_timeout_ns=30 * S,
    deflate=True,
    max_deflate_level=6,
    snappy=True,
    snappy_available=True,
    tls=False,
    auth_required=False,
    topology_region="",
    topology_zone="",
)

# The answer of nsqd 1.3.0 with default options to a request without fields.
ANSWER = {
    "max_rdy_count": 2500,
    "version": "1.3.0",
    "max_msg_timeout": 900000,
    "msg_timeout": 60000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
    "topology_region": "",
    "topology_zone": "",
}


def asking(**fields: Any) -> IdentifyRequest:
    return IdentifyRequest(feature_negotiation=True, **fields)


def answer(request: IdentifyRequest, limits: IdentifyLimits = LIMITS) -> dict[str, object]:
    document: dict[str, object] = json.loads(encode_response(negotiate(request, limits), limits))
    return document


# ---- the request ------------------------------------------------------------------------------------------------


@given(strategies.identify_requests())
def test_encoded_request_is_decoded_to_itself(request: IdentifyRequest) -> None:
    assert decode_request(encode_request(request)) == request


def test_request_has_only_fields_that_differ_from_the_defaults() -> None:
    assert json.loads(encode_request(IdentifyRequest())) == {}
    assert json.loads(encode_request(asking(msg_timeout=5000))) == {
        "feature_negotiation": True,
        "msg_timeout": 5000,
    }


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"{}", {}),
        (b"null", {}),
        (b'{"client_id": null, "heartbeat_interval": null, "tls_v1": null}', {}),
        (b' \n {"client_id":"x"} \t\r\n', {"client_id": "x"}),
        (b'{"Client_ID": "x", "TLS_V1": true}', {"client_id": "x", "tls_v1": True}),
        (b'{"x": {"y": [1, 2.5, {"z": null}]}, "long_id": 1e400}', {}),
        (b'{"heartbeat_interval": 5, "heartbeat_interval": 5000}', {"heartbeat_interval": 5000}),
        (b'{"msg_timeout": 1, "MSG_TIMEOUT": 2, "msg_timeout": 3}', {"msg_timeout": 3}),
        (b'{"msg_timeout": 3, "MSG_TIMEOUT": 2}', {"msg_timeout": 2}),
        (b'{"msg_timeout": 3, "msg_timeout": null}', {"msg_timeout": 3}),
        (b'{"output_buffer_size": -0}', {}),
        (b'{"msg_timeout": 9223372036854775807}', {"msg_timeout": 9223372036854775807}),
        (b'{"msg_timeout": -9223372036854775808}', {"msg_timeout": -9223372036854775808}),
        (b'{"sample_rate": 2147483647}', {"sample_rate": 2147483647}),
        (b'{"client_id": "caf\xc3\xa9 \\u4e16\\ud83d\\ude00"}', {"client_id": "caf\u00e9 \u4e16\U0001f600"}),
        (b'{"client_id": "<\xff\xe4\xb8>"}', {"client_id": "<\ufffd\ufffd\ufffd>"}),
        (b'{"client_id": "<\\ud800\\udc00\\ud800>\\udfff"}', {"client_id": "<\U00010000\ufffd>\ufffd"}),
        (b'{"\xff": 1}', {}),
    ],
)
def test_request_is_decoded_as_by_go(body: bytes, fields: dict[str, Any]) -> None:
    assert decode_request(body) == IdentifyRequest(**fields)


@pytest.mark.parametrize(
    "body",
    [
        b"this is not json",
        b"",
        b"[]",
        b'[["client_id", "x"]]',
        b'"x"',
        b"1",
        b"true",
        b'{"client_id": "a"',
        b"{} {}",
        b'\xef\xbb\xbf{"client_id": "a"}',
        b'\xff{"client_id": "a"}',
        b'{"client_id": "a\nb"}',
        b'{"client_id": 5}',
        b'{"client_id": {}}',
        b'{"heartbeat_interval": "1000"}',
        b'{"heartbeat_interval": 1000.5}',
        b'{"heartbeat_interval": 1000.0}',
        b'{"heartbeat_interval": 1e3}',
        b'{"heartbeat_interval": 01}',
        b'{"heartbeat_interval": true}',
        b'{"heartbeat_interval": []}',
        b'{"heartbeat_interval": NaN}',
        b'{"x": -Infinity}',
        b'{"snappy": 1}',
        b'{"SNAPPY": "true"}',
        b'{"msg_timeout": "1", "msg_timeout": 5000}',
        b'{"msg_timeout": 9223372036854775808}',
        b'{"msg_timeout": -9223372036854775809}',
        b'{"msg_timeout": 1' + b"0" * 5000 + b"}",
        b'{"sample_rate": 2147483648}',
        b'{"sample_rate": -2147483649}',
        b'{"x":' * 100_000,
        b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:40]),
)
def test_request_that_go_refuses_is_refused(body: bytes) -> None:
    with pytest.raises(BadBody, match=r"^E_BAD_BODY IDENTIFY failed to decode JSON body$"):
        decode_request(body)


@given(st.data(), strategies.identify_requests().map(encode_request))
def test_garbage_is_a_bad_body_or_a_request(data: st.DataObject, body: bytes) -> None:
    body = data.draw(st.one_of(strategies.damaged(body), st.binary(max_size=30)))
    try:
        request = decode_request(body)
    except BadBody:
        return
    encode_request(request).decode("ascii")
    request.client_id.encode()


# ---- the grant --------------------------------------------------------------------------------------------------


def test_empty_request_is_granted_the_defaults() -> None:
    assert negotiate(IdentifyRequest(), LIMITS) == Grant(
        heartbeat_interval_ns=30 * S,
        msg_timeout_ns=60 * S,
        output_buffer_size=16384,
        output_buffer_timeout_ns=250 * NS_PER_MS,
    )


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ({"heartbeat_interval": -1}, {"heartbeat_interval_ns": 0}),
        ({"heartbeat_interval": 1000}, {"heartbeat_interval_ns": 1 * S}),
        ({"heartbeat_interval": 60000}, {"heartbeat_interval_ns": 60 * S}),
        ({"msg_timeout": 1000}, {"msg_timeout_ns": 1 * S}),
        ({"msg_timeout": 900000}, {"msg_timeout_ns": 900 * S}),
        ({"output_buffer_size": 64}, {"output_buffer_size": 64}),
        ({"output_buffer_size": 65536}, {"output_buffer_size": 65536}),
        ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout_ns": 0}),
        (
            {"output_buffer_size": -1, "output_buffer_timeout": 900},
            {"output_buffer_size": 1, "output_buffer_timeout_ns": 0},
        ),
        ({"output_buffer_timeout": 25}, {"output_buffer_timeout_ns": 25 * NS_PER_MS}),
        ({"output_buffer_timeout": 30000}, {"output_buffer_timeout_ns": 30 * S}),
        ({"output_buffer_timeout": -1}, {"output_buffer_timeout_ns": 0}),
        ({"sample_rate": 99}, {"sample_rate": 99}),
        ({"tls_v1": True}, {}),
        ({"snappy": True}, {"snappy": True}),
        ({"deflate_level": 3}, {}),
        ({"deflate": True}, {"deflate": True, "deflate_level": 6}),
        ({"deflate": True, "deflate_level": 1}, {"deflate": True, "deflate_level": 1}),
        ({"deflate": True, "deflate_level": 9}, {"deflate": True, "deflate_level": 6}),
        ({"deflate": True, "deflate_level": -5}, {"deflate": True, "deflate_level": 6}),
    ],
    ids=repr,
)
def test_value_within_the_limits_is_granted(asked: dict[str, Any], granted: dict[str, Any]) -> None:
    assert negotiate(asking(**asked), LIMITS) == attrs.evolve(negotiate(asking(), LIMITS), **granted)


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("heartbeat_interval", 999, "heartbeat interval"),
        ("heartbeat_interval", 60001, "heartbeat interval"),
        ("heartbeat_interval", -2, "heartbeat interval"),
        ("output_buffer_size", 63, "output buffer size"),
        ("output_buffer_size", 65537, "output buffer size"),
        ("output_buffer_size", -2, "output buffer size"),
        ("output_buffer_timeout", 24, "output buffer timeout"),
        ("output_buffer_timeout", 30001, "output buffer timeout"),
        ("output_buffer_timeout", -2, "output buffer timeout"),
        ("sample_rate", 100, "sample rate"),
        ("sample_rate", -1, "sample rate"),
        ("msg_timeout", 999, "msg timeout"),
        ("msg_timeout", 900001, "msg timeout"),
        ("msg_timeout", -1, "msg timeout"),
    ],
)
def test_value_beyond_the_limits_is_refused(field: str, value: int, what: str) -> None:
    with pytest.raises(BadBody) as refused:
        negotiate(IdentifyRequest(**{field: value}), LIMITS)  # type: ignore[arg-type]
    assert str(refused.value) == f"E_BAD_BODY IDENTIFY {what} ({value}) is invalid"


def test_first_wrong_value_in_the_order_of_nsqd_is_named() -> None:
    order = [
        "heartbeat_interval",
        "output_buffer_timeout",
        "output_buffer_size",
        "sample_rate",
        "msg_timeout",
    ]
    wrong = dict.fromkeys(order, -3)
    wrong["deflate"] = wrong["snappy"] = True
    for field in order:
        with pytest.raises(BadBody, match=field.replace("_", " ")):
            negotiate(asking(**wrong), LIMITS)
        del wrong[field]
    with pytest.raises(IdentifyFailed):
        negotiate(asking(**wrong), LIMITS)


@pytest.mark.parametrize("available", [True, False])
def test_both_compressions_together_are_refused(available: bool) -> None:
    limits = attrs.evolve(LIMITS, snappy_available=available)
    with pytest.raises(IdentifyFailed) as refused:
        negotiate(asking(deflate=True, snappy=True), limits)
    assert str(refused.value) == "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"


def test_compression_requires_feature_negotiation() -> None:
    grant = negotiate(IdentifyRequest(deflate=True, deflate_level=1, snappy=True), LIMITS)
    assert grant == negotiate(IdentifyRequest(), LIMITS)


@pytest.mark.parametrize(
    ("off", "deflate", "snappy"),
    [
        ({"deflate": False}, False, True),
        ({"snappy": False}, True, False),
        ({"deflate": False, "snappy": False}, False, False),
        ({"deflate": False, "snappy_available": False}, False, False),
    ],
)
def test_disabled_compression_is_not_granted(off: dict[str, bool], deflate: bool, snappy: bool) -> None:
    grant = negotiate(asking(deflate=True, snappy=True), attrs.evolve(LIMITS, **off))  # type: ignore[arg-type]
    assert (grant.deflate, grant.snappy) == (deflate, snappy)


@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("negotiates", [True, False])
def test_tls_is_granted_if_offered_and_requested(offered: bool, asks: bool, negotiates: bool) -> None:
    request = IdentifyRequest(tls_v1=asks, feature_negotiation=negotiates)
    grant = negotiate(request, attrs.evolve(LIMITS, tls=offered))
    assert grant.tls_v1 is (offered and asks and negotiates)


def test_limits_are_those_of_the_broker() -> None:
    limits = attrs.evolve(
        LIMITS,
        max_heartbeat_interval_ns=5 * S,
        max_output_buffer_size=128,
        min_output_buffer_timeout_ns=50 * NS_PER_MS,
        max_output_buffer_timeout_ns=2 * S,
        max_msg_timeout_ns=90 * S,
    )
    least = asking(heartbeat_interval=5000, output_buffer_size=128, output_buffer_timeout=50, msg_timeout=90000)
    assert negotiate(least, limits).output_buffer_timeout_ns == 50 * NS_PER_MS
    for field, value in {
        "heartbeat_interval": 5001,
        "output_buffer_size": 129,
        "output_buffer_timeout": 2001,
        "msg_timeout": 90001,
    }.items():
        with pytest.raises(BadBody, match=rf"\({value}\) is invalid"):
            negotiate(attrs.evolve(least, **{field: value}), limits)  # type: ignore[arg-type]
    with pytest.raises(BadBody, match=r"output buffer timeout \(49\) is invalid"):
        negotiate(attrs.evolve(least, output_buffer_timeout=49), limits)


# ---- the answer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({}, {}),
        ({"msg_timeout": 5000}, {"msg_timeout": 5000}),
        ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout": 0}),
        ({"output_buffer_timeout": 1000}, {"output_buffer_timeout": 1000}),
        ({"sample_rate": 42}, {"sample_rate": 42}),
        ({"deflate": True, "deflate_level": 3}, {"deflate": True, "deflate_level": 3}),
        ({"snappy": True}, {"snappy": True}),
        ({"topology_region": "mine"}, {}),
    ],
    ids=repr,
)
def test_answer_has_the_grant(asked: dict[str, Any], answered: dict[str, object]) -> None:
    assert answer(asking(**asked)) == {**ANSWER, **answered}


def test_answer_has_the_limits_of_the_broker() -> None:
    limits = attrs.evolve(
        LIMITS,
        max_rdy_count=77,
        max_msg_timeout_ns=90 * S,
        max_deflate_level=4,
        auth_required=True,
        topology_region="r\u00e91",
        topology_zone="z1",
    )
    assert answer(asking(topology_region="mine"), limits) == {
        **ANSWER,
        "max_rdy_count": 77,
        "max_msg_timeout": 90000,
        "deflate_level": 4,
        "max_deflate_level": 4,
        "auth_required": True,
        "topology_region": "r\u00e91",
        "topology_zone": "z1",
    }


def test_answer_has_the_order_and_form_of_nsqd() -> None:
    assert encode_response(negotiate(asking(), LIMITS), LIMITS) == (json.dumps(ANSWER, separators=(",", ":")).encode())


def test_client_decodes_the_answer() -> None:
    limits = attrs.evolve(LIMITS, max_rdy_count=77, max_msg_timeout_ns=90 * S, auth_required=True)
    payload = encode_response(negotiate(asking(msg_timeout=5000), limits), limits)
    assert decode_response(payload) == IdentifyAnswer(
        max_rdy_count=77, version="1.3.0", max_msg_timeout=90_000, msg_timeout=5_000, auth_required=True
    )


def test_client_decodes_all_fields_of_the_answer() -> None:
    answer = {
        **ANSWER,
        "tls_v1": True,
        "deflate": True,
        "deflate_level": 3,
        "sample_rate": 99,
        "snappy": True,
    }
    answer |= {
        "output_buffer_size": 1,
        "output_buffer_timeout": 0,
        "topology_region": "r",
        "topology_zone": "z",
    }
    assert attrs.asdict(decode_response(json.dumps(answer).encode())) == answer


@pytest.mark.parametrize("payload", [b"OK", b"{}", b'{"version": null, "newer": [NaN]}'])
def test_answer_may_have_fewer_or_more_fields(payload: bytes) -> None:
    assert decode_response(payload) == IdentifyAnswer()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"ok",
        b"[]",
        b"null",
        b'"version"',
        b'{"max_rdy_count": "2500"}',
        b'{"max_rdy_count": 1.5}',
        b'{"max_rdy_count": true}',
        b'{"max_rdy_count": -1}',
        b'{"max_rdy_count": 9223372036854775808}',
        b'{"sample_rate": 100}',
        b'{"deflate_level": 10}',
        b'{"tls_v1": 1}',
        b'{"auth_required": 1}',
        b'{"version": "\xff"}',
        b"[" * 100_000,
    ],
    ids=lambda payload: repr(payload[:40]),
)
def test_invalid_answer_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="the answer to IDENTIFY cannot be understood: b") as refused:
        decode_response(payload)
    assert len(str(refused.value)) < 300


@given(st.one_of(st.binary(max_size=30), strategies.damaged(json.dumps(ANSWER).encode())))
def test_garbage_is_a_protocol_error_or_an_answer(payload: bytes) -> None:
    try:
        decode_response(payload)
    except ProtocolError:
        pass


def test_value_of_0_leaves_the_setting_of_the_last_identify() -> None:
    asked = asking(heartbeat_interval=2000, output_buffer_size=64, output_buffer_timeout=25, msg_timeout=3000)
    granted = negotiate(asked, LIMITS)
    assert negotiate(asking(), LIMITS, granted) == granted
    assert negotiate(asking(), LIMITS, negotiate(asking(output_buffer_size=-1), LIMITS)).output_buffer_timeout_ns == 0
