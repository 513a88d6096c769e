from __future__ import annotations

import pickle
import re

import pytest

from nsqkit import errors

ALL = [getattr(errors, name) for name in errors.__all__]
BROKER_ERRORS = errors.BrokerError.__subclasses__()


def test_all_lists_every_exception_of_the_module() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {*errors.__all__} == {name for name in defined if issubclass(vars(errors)[name], BaseException)}
    assert sorted(errors.__all__) == errors.__all__


@pytest.mark.parametrize("cls", ALL)
def test_each_error_has_the_root_and_a_docstring(cls: type[Exception]) -> None:
    assert issubclass(cls, errors.NSQError)
    assert cls.__doc__


def test_docstring_has_the_whole_tree() -> None:
    drawn = re.findall(r"\b[A-Z]\w*[a-z]\w*\b", (errors.__doc__ or "").partition("\n\n    NSQError")[2])
    assert {cls.__name__ for cls in ALL} - {"NSQError"} <= {*drawn}


@pytest.mark.parametrize("cls", BROKER_ERRORS)
def test_docstring_has_the_code_of_each_class(cls: type[errors.BrokerError]) -> None:
    drawn = re.search(rf"\b{cls.__name__} +(E_\w+)( +\(not fatal\))?", errors.__doc__ or "")
    if drawn:
        assert (drawn[1], not drawn[2]) == (cls.code, cls.fatal)
    else:
        # The last line of the tree has the classes whose code is their name.
        assert cls.code == "E" + re.sub(r"([A-Z])", r"_\1", cls.__name__).upper()


def test_a_wrong_option_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="rdy"):
        raise errors.OptionError("rdy")


@pytest.mark.parametrize("cls", [errors.NotConnected, errors.ConnectionLost, errors.HeartbeatTimeout])
def test_errors_of_the_connection_have_one_base(cls: type[errors.NSQError]) -> None:
    assert issubclass(cls, errors.TransportError)
    assert not issubclass(cls, errors.BrokerError)


def test_text_of_a_broker_error_is_that_of_nsqd() -> None:
    error = errors.FinishFailed("FIN 0123456789abcdef failed ID not in flight")
    assert str(error) == "E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
    assert not error.fatal
    assert str(errors.BadProtocol()) == "E_BAD_PROTOCOL"


@pytest.mark.parametrize("cls", [errors.BrokerError, *BROKER_ERRORS])
def test_broker_error_can_be_pickled(cls: type[errors.BrokerError]) -> None:
    error = pickle.loads(pickle.dumps(cls("why")))
    assert type(error) is cls
    assert (error.code, error.description, error.fatal) == (cls.code, "why", cls.fatal)


def test_request_refused_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(errors.RequestRefused("http://h:1/x", 404, "TOPIC_NOT_FOUND")))
    assert str(error) == "http://h:1/x: 404 TOPIC_NOT_FOUND"
    assert (error.asked, error.status, error.message) == ("http://h:1/x", 404, "TOPIC_NOT_FOUND")
