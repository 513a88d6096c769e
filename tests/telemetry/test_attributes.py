from __future__ import annotations

import pytest

from nsqkit.errors import BadTopic, ConnectionLost
from nsqkit.telemetry.attributes import error_type, operation_attributes, server_attributes


def test_operation_has_the_attributes_of_the_conventions():
    assert operation_attributes("process", "process", "clicks", "archive", "nsqd-1:4150") == {
        "messaging.system": "nsq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "clicks",
        "messaging.destination.subscription.name": "archive",
        "server.address": "nsqd-1",
        "server.port": 4150,
    }


def test_unknown_attributes_are_omitted():
    assert operation_attributes("publish", "send", "clicks") == {
        "messaging.system": "nsq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "clicks",
    }


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("[::1]:4150", {"server.address": "::1", "server.port": 4150}),
        ("/run/nsqd.sock", {"server.address": "/run/nsqd.sock"}),
    ],
)
def test_address_is_split_into_host_and_port(address, expected):
    assert server_attributes(address) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BadTopic("no"), "E_BAD_TOPIC"),
        (ConnectionLost("gone"), "nsqkit.errors.ConnectionLost"),
        (ValueError("no"), "ValueError"),
    ],
)
def test_error_type_of_each_error(error, expected):
    assert error_type(error) == expected
