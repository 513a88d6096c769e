from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.http.answers import SHOWN_LENGTH_MAX, Refusal, decode_document, read_message


def enveloped(data: object, status: object = 200, text: str = "OK") -> bytes:
    return json.dumps({"status_code": status, "status_txt": text, "data": data}).encode()


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (b'{"channels":["c"]}', {"channels": ["c"]}),
        (b"{}", {}),
        (b' {"a": "\xff"}\n', {"a": "\ufffd"}),
        (enveloped({"channels": ["c"]}), {"channels": ["c"]}),
        (b'{"data": 1}', {"data": 1}),
    ],
)
def test_an_answer_with_or_without_an_envelope(body, document):
    assert decode_document(body) == document


@pytest.mark.parametrize(
    "body",
    [b"", b"OK", b"[]", b"null", b"{", b'{"a":' + b"9" * 5000 + b"}", b"[" * 100_000, enveloped(None)],
    ids=repr,
)
def test_an_answer_that_is_not_json_is_refused(body):
    with pytest.raises(ValueError, match="the answer is no JSON object: ") as caught:
        decode_document(body)
    assert len(str(caught.value)) < SHOWN_LENGTH_MAX + 50


@pytest.mark.parametrize(("message", "status"), [(404, 404), ("?", 500), (None, 500)])
def test_the_envelope_of_a_refusal(message, status):
    with pytest.raises(Refusal) as caught:
        decode_document(enveloped(None, message, "INVALID_ARG_TOPIC"))
    assert caught.value.args == (status, "INVALID_ARG_TOPIC")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"message":"TOPIC_NOT_FOUND"}', "TOPIC_NOT_FOUND"),
        (enveloped(None, 404, "TOPIC_NOT_FOUND"), "TOPIC_NOT_FOUND"),
        (b'{"message": 1}', '{"message": 1}'),
        (b"NOK - disk full\n", "NOK - disk full"),
        (b"\xff", "\ufffd"),
        (b"", ""),
        (b"x" * 1000, "x" * SHOWN_LENGTH_MAX),
        (b'{"message":"%s"}' % (b"x" * 1000), "x" * SHOWN_LENGTH_MAX),
    ],
)
def test_the_message_of_a_refusal(body, message):
    assert read_message(body) == message


@given(
    st.one_of(
        st.binary(),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(),
            lambda children: (
                st.lists(children)
                | st.dictionaries(
                    st.sampled_from(["status_code", "data", "message", "status_txt"]) | st.text(), children
                )
            ),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_bytes_are_decoded_or_refused(body):
    assert isinstance(read_message(body), str)
    try:
        assert isinstance(decode_document(body), dict)
    except (ValueError, Refusal):
        pass
