from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import ProtocolError
from nsqkit.wire.auth import AuthAnswer, decode_answer, encode_answer
from tests import strategies

ANSWER = AuthAnswer(identity="r\u00e9my", identity_url="https://example.org/r", permission_count=3)
DOCUMENT = '{"identity":"r\u00e9my","identity_url":"https://example.org/r","permission_count":3}'.encode()


def test_answer_has_the_order_and_form_of_nsqd() -> None:
    assert encode_answer(ANSWER) == DOCUMENT
    assert decode_answer(DOCUMENT) == ANSWER


@pytest.mark.parametrize("payload", [b"{}", b"null", b'{"identity": null, "ttl": 5}'])
def test_answer_may_have_fewer_or_more_fields(payload: bytes) -> None:
    assert decode_answer(payload) == AuthAnswer()


@pytest.mark.parametrize("payload", [b"", b"OK", b"[]", b'{"identity": 5}', b'{"permission_count": "3"}', b"[" * 9999])
def test_invalid_answer_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="the answer to AUTH cannot be understood: b") as refused:
        decode_answer(payload)
    assert len(str(refused.value)) < 300


def test_bytes_that_are_not_text_are_replaced() -> None:
    assert encode_answer(AuthAnswer(identity="\ud800")) == b'{"identity":"?","identity_url":"","permission_count":0}'


@given(st.one_of(st.binary(max_size=30), strategies.damaged(DOCUMENT)))
def test_garbage_is_a_protocol_error_or_an_answer(payload: bytes) -> None:
    try:
        decode_answer(payload)
    except ProtocolError:
        pass
