from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit import errors
from nsqkit.wire.error_codes import BROKER_ERRORS, decode_error_text, encode_error_text
from tests import strategies

# All codes in the sources of nsqd 1.3.0.
FATAL = {
    *(b"E_AUTH_DISABLED", b"E_AUTH_ERROR", b"E_AUTH_FAILED", b"E_AUTH_FIRST", b"E_UNAUTHORIZED"),
    *(b"E_BAD_BODY", b"E_BAD_CHANNEL", b"E_BAD_MESSAGE", b"E_BAD_PROTOCOL", b"E_BAD_TOPIC"),
    *(b"E_IDENTIFY_FAILED", b"E_INVALID", b"E_SUB_FAILED"),
    *(b"E_PUB_FAILED", b"E_MPUB_FAILED", b"E_DPUB_FAILED"),
}
NOT_FATAL = {b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"}


def test_table_has_the_codes_of_nsqd() -> None:
    assert {code for code, cls in BROKER_ERRORS.items() if cls.fatal} == FATAL
    assert {code for code, cls in BROKER_ERRORS.items() if not cls.fatal} == NOT_FATAL


def test_each_class_has_its_own_code() -> None:
    named = {getattr(errors, name) for name in errors.__all__}
    classes = {cls for cls in named if issubclass(cls, errors.BrokerError)} - {errors.BrokerError}
    assert {cls.code.encode(): cls for cls in classes} == BROKER_ERRORS
    assert len(classes) == len(BROKER_ERRORS)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.BadProtocol(), b"E_BAD_PROTOCOL"),
        (errors.InvalidCommand("invalid command PING"), b"E_INVALID invalid command PING"),
        (errors.BadTopic('E_BAD_TOPIC MPUB topic name "caf\u00e9" is not valid'), None),
        (
            errors.InvalidCommand("invalid command \x00\x01\udcfe\udcff"),
            b"E_INVALID invalid command \0\1\xfe\xff",
        ),
        (errors.InvalidCommand("invalid command "), b"E_INVALID invalid command "),
    ],
)
def test_text_of_an_error(error: errors.BrokerError, text: bytes | None) -> None:
    assert encode_error_text(error) == (str(error).encode() if text is None else text)
    assert str(decode_error_text(encode_error_text(error))) == str(error)


@given(strategies.broker_errors())
def test_encoded_error_is_decoded_to_itself(error: errors.BrokerError) -> None:
    again = decode_error_text(encode_error_text(error))
    assert type(again) is type(error)
    assert again.description == error.description


def has_no_known_code(payload: bytes) -> bool:
    return payload.partition(b" ")[0] not in BROKER_ERRORS


@given(
    st.binary(max_size=30).filter(has_no_known_code) | st.sampled_from((b"E_NEWER than this table", b"E_INVALIDE x"))
)
def test_unknown_code_is_a_fatal_error_with_the_whole_text(payload: bytes) -> None:
    error = decode_error_text(payload)
    assert error.fatal
    assert type(error) is errors.BrokerError
    assert error.description.encode("utf-8", "surrogateescape") == payload
