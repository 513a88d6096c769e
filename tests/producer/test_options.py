from __future__ import annotations

import attrs
import pytest

from nsqkit.client.options import ConnectionOptions
from nsqkit.errors import OptionError
from nsqkit.options.checks import make_options
from nsqkit.producer.options import ProducerKeywords, ProducerOptions
from tests.wrong_options import check_option, declared_types, keyword_types, names


def make(**options: object) -> ProducerOptions:
    return make_options(ProducerOptions, options)


@pytest.mark.parametrize("name", names(ProducerOptions))
def test_a_wrong_option_is_refused_by_name_value_and_limits(name):
    check_option(make, name)


def test_an_option_that_does_not_exist_is_refused_by_name():
    with pytest.raises(OptionError, match=r"^there is no option 'conect_timeout'; did you mean 'connect_timeout'\?$"):
        make(conect_timeout=5)


def test_the_keywords_are_the_options():
    assert declared_types(ProducerKeywords) == keyword_types(ProducerOptions)


def test_options_of_a_producer_besides_those_of_a_connection():
    own = {field.name for field in attrs.fields(ProducerOptions)} - {
        field.name for field in attrs.fields(ConnectionOptions)
    }
    assert {name: getattr(ProducerOptions(), name) for name in own} == {
        "connect_timeout": 5.0,
        "publish_timeout": 0.0,
        "publish_attempts": 1,
        "policy": "round-robin",
        "linger": 0.0,
        "linger_max_messages": 500,
        "linger_max_bytes": 1 << 20,
        "max_outstanding_bytes": 0,
        "max_defer_timeout": 3600.0,
    }


def test_batch_size_is_at_most_max_body_size():
    assert make(linger_max_bytes=1 << 20, max_body_size=5000, max_msg_size=1000).batch_size_max == 5000
    assert make(linger_max_bytes=2000).batch_size_max == 2000
