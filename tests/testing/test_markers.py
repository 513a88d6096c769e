from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.testing.markers import checks_leaks, merged_options, topic_name
from nsqkit.wire.names import is_valid_name


def test_nearest_marker_wins_for_each_option() -> None:
    marks = [pytest.mark.nsqd(msg_timeout=1).mark, pytest.mark.nsqd(msg_timeout=2, mem_queue_size=3).mark]
    assert merged_options(marks) == {"msg_timeout": 1, "mem_queue_size": 3}


def test_value_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"@pytest.mark.nsqd\('2s'\) has values without names; allowed is name=value"):
        merged_options([pytest.mark.nsqd("2s").mark])


def test_leaks_is_no_option_of_the_server() -> None:
    options = {"leaks": "allow", "msg_timeout": 1}
    assert not checks_leaks(options)
    assert options == {"msg_timeout": 1}
    assert checks_leaks(options)
    with pytest.raises(ValueError, match="leaks is 'no'; allowed is 'strict' or 'allow'"):
        checks_leaks({"leaks": "no"})


@given(st.text())
def test_name_of_a_topic_is_valid_for_each_name_of_a_test(test: str) -> None:
    name = topic_name(test, "0123abcd")
    assert is_valid_name(name.encode())
    assert name.endswith("-0123abcd")
