"""A wrong argument of the public API raises an OptionError with its name, and its value or type.

``WRONG`` has wrong values for each kind of argument; ``CALLS`` has the kinds of the arguments of each callable. A test
compares both with the signatures, so a new argument must be added here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from nsqkit import (
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    HTTPProducer,
    LookupdAdmin,
    NsqdAdmin,
    OptionError,
    Producer,
)
from nsqkit.testing.servers import NsqdServer

NOT_A_TEXT: list[Any] = [None, 5, b"a", ["a"], {}]
NOT_A_NUMBER: list[Any] = ["1", [1], True, math.nan, math.inf, -1]
NO_ADDRESS: list[Any] = [*NOT_A_TEXT, "a", "a:b", "a:65536"]
NO_OBJECT: list[Any] = [5, "json", ["a"], {}]

WRONG: dict[str, list[Any]] = {
    "topic": [*NOT_A_TEXT, "", "a b"],
    "name or empty": [5, ["a"], "a b"],
    "config": [*NOT_A_TEXT[:2], ["a"], "a/b"],
    "node": NO_ADDRESS,
    "address": [*NO_ADDRESS, ":4150", "a:0", "http://a:4150"],
    "http address": [*NO_ADDRESS, "ftp://a:1"],
    "addresses": ["a:1", b"a:1", None, 5, {"a:1"}, [5], ["a"], [":4150"], ["http://a:4150"]],
    "http addresses": ["a:1", b"a:1", None, 5, {"a:1"}, [5], ["a"]],
    "body": ["text", None, 5, [b"a"], {}, b""],
    "bodies": [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab", None, 5, [], [5], [b"a", "b"], {b"a"}, [[]]],
    "key": [5, ["a"], {}],
    "timeout": [*NOT_A_NUMBER, 1e10],
    "seconds": [*NOT_A_NUMBER, None, 0],
    "delay": [*NOT_A_NUMBER, 1e10],
    "wait": [*NOT_A_NUMBER, None],
    "whole": ["1", [1], True, 1.5, -1, 10**7],
    "at least one": ["1", [1], True, 1.5, 0, -1],
    "tool": NO_OBJECT,
    "signals": ["SIGTERM", 15, None, ["SIGTERM"], [999]],
    "flag": ["true", None, 0, 1],
    "json": [object(), {1}, b"a"],
    "messages": [None, 5, "a", [b"a"], [None]],
    "header": [None, 5, ["a"], "a\nb"],
}

PRODUCER = {"key": "key", "timeout": "timeout"}
CLIENT = {"serializer": "tool"}
CLOCK = {"clock": "tool"}
TOOLS = {**CLOCK, "dial": "tool", "random": "tool"}
CHANNEL = {"topic": "topic", "channel": "topic"}
CONSUMER = {
    **CHANNEL,
    **CLIENT,
    "nsqd_tcp_addresses": "addresses",
    "lookupd_http_addresses": "http addresses",
    "on_backoff": "tool",
    "stop_signals": "signals",
}
ADMIN = {
    "address": "http address",
    "tls_context": "tool",
    "authorization": "header",
    "connect_timeout": "seconds",
    "request_timeout": "seconds",
    "http_request": "tool",
}
PUBLISHING = {
    "publish": {"topic": "topic", "body": "body", **PRODUCER},
    "multi_publish": {"topic": "topic", "bodies": "bodies", **PRODUCER},
    "deferred_publish": {"topic": "topic", "body": "body", "delay": "delay", **PRODUCER},
    "publish_nowait": {"topic": "topic", "body": "body", "key": "key"},
    "multi_publish_nowait": {"topic": "topic", "bodies": "bodies", "key": "key"},
    "deferred_publish_nowait": {"topic": "topic", "body": "body", "delay": "delay", "key": "key"},
    "wait_connected": {"timeout": "timeout"},
    "ensure_topic": {"topic": "topic"},
    "ensure_channel": CHANNEL,
}
CONSUMING = {
    "stop": {"timeout": "timeout"},
    "batches": {"max_messages": "at least one", "max_wait": "wait"},
    "wait_connected": {"timeout": "timeout"},
    "change_max_in_flight": {"max_in_flight": "whole"},
    "connect_to_nsqd": {"address": "address"},
    "disconnect_from_nsqd": {"address": "address"},
    "connect_to_lookupd": {"address": "http address"},
    "disconnect_from_lookupd": {"address": "http address"},
}

CALLS: dict[type, dict[str, dict[str, str]]] = {
    Producer: {
        "__init__": {
            "addresses": "address",
            "nsqd_tcp_addresses": "addresses",
            "nsqd_http_addresses": "http addresses",
            **CLIENT,
            **TOOLS,
        },
        **PUBLISHING,
    },
    BlockingProducer: {
        "__init__": {
            "addresses": "address",
            "nsqd_tcp_addresses": "addresses",
            "nsqd_http_addresses": "http addresses",
            **CLIENT,
            **CLOCK,
        },
        **PUBLISHING,
    },
    HTTPProducer: {
        "__init__": {
            "addresses": "http address",
            "nsqd_http_addresses": "http addresses",
            "tls_context": "tool",
            **CLIENT,
        },
        "publish": {"topic": "topic", "body": "body"},
        "multi_publish": {"topic": "topic", "bodies": "bodies"},
        "deferred_publish": {"topic": "topic", "body": "body", "delay": "delay"},
        "ensure_topic": {"topic": "topic"},
        "ensure_channel": CHANNEL,
    },
    Consumer: {
        "__init__": {**CONSUMER, **TOOLS},
        **CONSUMING,
        "finish_confirmed": {"messages": "messages"},
        "touch_confirmed": {"messages": "messages"},
    },
    BlockingConsumer: {
        "__init__": {**CONSUMER, **CLOCK},
        **CONSUMING,
        "receive": {"timeout": "timeout"},
        "receive_batch": {"max_messages": "at least one", "max_wait": "wait", "timeout": "timeout"},
    },
    NsqdAdmin: {
        "__init__": ADMIN,
        "stats": {
            "topic": "name or empty",
            "channel": "name or empty",
            "include_clients": "flag",
            "include_mem": "flag",
        },
        **{f"{verb}_topic": {"topic": "topic"} for verb in ("create", "delete", "empty", "pause", "unpause")},
        **{f"{verb}_channel": CHANNEL for verb in ("create", "delete", "empty", "pause", "unpause")},
        "get_config": {"option": "config"},
        "put_config": {"option": "config", "value": "json"},
    },
    LookupdAdmin: {
        "__init__": ADMIN,
        "lookup": {"topic": "topic"},
        "channels": {"topic": "topic"},
        "create_topic": {"topic": "topic"},
        "delete_topic": {"topic": "topic"},
        "tombstone_topic": {"topic": "topic", "node": "node"},
        "create_channel": CHANNEL,
        "delete_channel": CHANNEL,
    },
}

BLOCKING = (BlockingProducer, BlockingConsumer)

# Options, and calls whose arguments are options, are tested elsewhere.
FREE = {"options"}
ELSEWHERE = {"run", "run_batches"}

GOOD: dict[str, Any] = {
    "topic": "t",
    "channel": "c",
    "body": b"a",
    "bodies": [b"a"],
    "delay": 1.0,
    "nsqd_tcp_addresses": ["127.0.0.1:1"],
    "address": "127.0.0.1:1",
    "option": "log_level",
    "value": "info",
    "node": "127.0.0.1:1",
    "max_messages": 5,
}


def signature(cls: type, method: str) -> dict[str, inspect.Parameter]:
    function = inspect.unwrap(getattr(cls, method))
    parameters = inspect.signature(function).parameters
    return {name: one for name, one in parameters.items() if name not in {"self", *FREE}}


def public(cls: type) -> Iterator[str]:
    """Return the names of its methods that take arguments."""
    for name, _ in inspect.getmembers(cls, inspect.isfunction):
        if (name == "__init__" or not name.startswith("_")) and signature(cls, name):
            yield name


@pytest.mark.parametrize("cls", CALLS)
def test_all_arguments_are_tested(cls):
    assert set(CALLS[cls]) == set(public(cls)) - ELSEWHERE
    for method, kinds in CALLS[cls].items():
        assert set(kinds) == set(signature(cls, method)), method


CASES = [
    (cls, method, name, value)
    for cls, methods in CALLS.items()
    for method, kinds in methods.items()
    for name, kind in kinds.items()
    for value in WRONG[kind]
]


def call(cls: type, client: Any, method: str, name: str, value: object) -> object:
    """Call a method with one wrong argument and otherwise allowed ones."""
    parameters = signature(cls, method)
    given = {
        other: GOOD[other]
        for other, parameter in parameters.items()
        if other in GOOD and (parameter.default is parameter.empty or method == "__init__" or other == "max_messages")
    }
    if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
        given.pop("nsqd_tcp_addresses", None)
        return cls(value)
    if "addresses" in parameters and name != "nsqd_tcp_addresses":  # one address, so that only the other is wrong
        given.pop("nsqd_tcp_addresses", None)
        return cls("127.0.0.1:1", **{**given, name: value})
    return (cls if method == "__init__" else getattr(client, method))(**{**given, name: value})


def check(caught: OptionError, name: str, value: object) -> None:
    sentence = str(caught)
    words = [name, name.replace("_", " "), "address"] if "address" in name or name == "node" else [name]
    assert any(word in sentence for word in words), sentence
    shown = [repr(value)[:40], type(value).__name__, f"{value!s:.40}"]
    shown += [repr(part) for part in value] if isinstance(value, list) else []
    shown += [f"a {type(part).__name__}" for part in value] if isinstance(value, list) else []
    shown += ["0 bytes"] if value == b"" else []
    assert name == "authorization" or any(word in sentence for word in shown), sentence


@pytest.fixture(scope="module")
def blocking(nsqd_of_module: NsqdServer) -> Iterator[dict[type, Any]]:
    address = nsqd_of_module.tcp_address
    with (
        BlockingProducer(address, nsqd_http_addresses=[nsqd_of_module.http_address]) as producer,
        BlockingConsumer("t", "c", nsqd_tcp_addresses=[address]) as consumer,
    ):
        yield {BlockingProducer: producer, BlockingConsumer: consumer}


@pytest.fixture(scope="module")
def nsqd_of_module() -> Iterator[NsqdServer]:
    with NsqdServer() as nsqd:
        yield nsqd


@pytest.mark.parametrize(
    ("cls", "method", "name", "value"),
    [case for case in CASES if issubclass(case[0], BLOCKING)],
    ids=lambda part: getattr(part, "__name__", "memory" if isinstance(part, memoryview) else f"{part!r:.30}"),
)
def test_wrong_argument_of_a_blocking_client_is_refused(blocking, cls, method, name, value):
    with pytest.raises(OptionError) as caught:
        result = call(cls, blocking[cls], method, name, value)
        result.result(5)  # type: ignore[attr-defined]  # a call that does not wait reports the error by its future
    check(caught.value, name, value)


@pytest.mark.parametrize("cls", [cls for cls in CALLS if not issubclass(cls, BLOCKING)])
def test_wrong_argument_of_an_async_client_is_refused(nsqd_of_module, cls):
    anyio.run(check_all, cls, nsqd_of_module)


async def check_all(cls: type, nsqd: NsqdServer) -> None:
    make: dict[type, Callable[[], Any]] = {
        Producer: lambda: Producer(nsqd.tcp_address, nsqd_http_addresses=[nsqd.http_address]),
        HTTPProducer: lambda: HTTPProducer(nsqd.http_address),
        Consumer: lambda: Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]),
        NsqdAdmin: lambda: NsqdAdmin(nsqd.http_address),
        LookupdAdmin: lambda: LookupdAdmin(nsqd.http_address),
    }
    async with AsyncExitStack() as stack:
        client = make[cls]()
        if hasattr(client, "__aenter__"):
            await stack.enter_async_context(client)
        for owner, method, name, value in CASES:
            if owner is cls:
                with pytest.raises(OptionError) as caught:
                    result = call(cls, client, method, name, value)
                    if inspect.isawaitable(result):
                        await result
                check(caught.value, name, value)


def test_option_of_run_is_refused_by_the_consumer():
    for cls in (Consumer, BlockingConsumer):
        with pytest.raises(OptionError) as caught:
            cls("t", "c", nsqd_tcp_addresses=["127.0.0.1:1"], concurrency=5)  # type: ignore[call-arg]
        assert str(caught.value) == "there is no option 'concurrency' here; it is an option of run(…)"


def test_option_of_the_consumer_is_refused_by_run(blocking):
    with pytest.raises(OptionError) as caught:
        blocking[BlockingConsumer].run(print, max_in_flight=5)
    assert str(caught.value) == "there is no option 'max_in_flight' here; it is an option of BlockingConsumer(…)"

    async def run() -> None:
        await Consumer("t", "c", nsqd_tcp_addresses=["127.0.0.1:1"]).run(print, max_in_flight=5)  # type: ignore[call-arg]

    with pytest.raises(OptionError) as caught:
        anyio.run(run)
    assert str(caught.value) == "there is no option 'max_in_flight' here; it is an option of Consumer(…)"
