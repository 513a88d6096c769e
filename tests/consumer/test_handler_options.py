from __future__ import annotations

import pytest

from nsqkit.consumer.dead_letter import discard
from nsqkit.consumer.handler_options import HandlerOptions
from nsqkit.errors import OptionError
from nsqkit.options.checks import make_options


def test_the_defaults():
    options = HandlerOptions()
    assert (options.concurrency, options.key, options.in_threads) == (1, None, False)
    assert (options.auto_touch, options.cancel_at_timeout, options.giving_up) == (False, False, discard)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"concurrency": 0}, "concurrency is 0; allowed is a whole number from 1 to 1000000"),
        ({"key": "k"}, "key is 'k'; allowed is a function of a message"),
        ({"giving_up": None}, "giving_up is None; allowed is a function of a message"),
        ({"auto_touch": 1}, "auto_touch is 1; allowed is True or False"),
        ({"in_threads": "yes"}, "in_threads is 'yes'; allowed is True or False"),
        (
            {"in_threads": True, "cancel_at_timeout": True},
            "cancel_at_timeout is True; allowed is False with in_threads: no thread can be cancelled",
        ),
    ],
)
def test_invalid_value_is_refused(values, sentence):
    with pytest.raises(OptionError) as caught:
        HandlerOptions(**values)
    assert str(caught.value) == sentence


def test_unknown_option_is_refused_by_name():
    with pytest.raises(OptionError, match="concurency"):
        make_options(HandlerOptions, {"concurency": 3})
