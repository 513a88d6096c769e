"""Each target notices a fault that is planted in nsqkit, with its seeds and stored inputs alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqkit.broker.core import lookup_peer, metadata
from nsqkit.broker.core.disk import disk_queue, positions
from nsqkit.broker.core.session import auth
from nsqkit.http import client
from nsqkit.http import server as http_server
from nsqkit.lookupd import session as lookupd_session
from nsqkit.options import durations
from nsqkit.producer.session import ProducerSession
from nsqkit.wire import commands, compression, documents, frames
from tests.fuzz.corpus import load_target, stored_inputs
from tests.fuzz.harness import check


def _keeps_one_byte_less(decoder: Any, missing: int) -> None:
    decoder._data = decoder._data[decoder._position : -1]
    decoder._position = 0
    decoder._missing = missing


_keep = frames.FrameDecoder._keep


def _keeps_the_head_alone(decoder: Any, rest: bytes) -> None:
    _keep(decoder, rest[:8])


def _leaves_them(session: Any) -> None:
    session._rules.move("removed")


FAULTS = [
    ("broker_session", commands.CommandDecoder, "_keep", _keeps_one_byte_less),
    ("broker_layers", compression, "_end_of_run", lambda data, start: len(data)),
    ("consumer_session", frames.FrameDecoder, "_keep", _keeps_the_head_alone),
    ("producer_session", ProducerSession, "_fail", lambda session, tokens, error: session._ok.extend(tokens)),
    (
        "lookupd_session",
        lookupd_session.Session,
        "_remove_registrations",
        lambda session: session._rules.move("removed"),
    ),
    ("lookup_peer", lookup_peer, "decode_info", json.loads),
    ("http_server", http_server, "check_head", lambda head, version, headers: 1 // len(headers)),
    ("http_client", client, "ValueError", KeyError),
    ("documents", documents, "RecursionError", KeyError),
    ("disk_queue", disk_queue, "to_records", b"".join),
    ("disk_queue", positions, "FILE_NUMBER_MAX", positions.NUMBER_MAX),
    ("metadata", metadata, "RecursionError", KeyError),
    ("option_texts", durations, "_decimal", lambda value, places: str(value // 10**places)),
    ("auth_answer", auth, "_SURROGATE", None),
]


@pytest.mark.parametrize(("name", "owner", "attribute", "fault"), FAULTS)
def test_planted_fault_is_noticed(name, owner, attribute, fault, monkeypatch):
    target = load_target(name)
    monkeypatch.setattr(owner, attribute, fault, raising=False)
    with pytest.raises(Exception):  # noqa: B017, PT011 (faults end in different ways)
        for data in (b"", *target.SEEDS, *stored_inputs(name)):
            check(target, data)
