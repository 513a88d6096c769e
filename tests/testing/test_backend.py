from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nsqkit.errors import OptionError
from nsqkit.testing.backend import make_backend, make_clock
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.embedded import EmbeddedNsqd
from nsqkit.testing.errors import Unsupported
from nsqkit.testing.options import nsqd_options
from nsqkit.testing.process import ProcessNsqd
from nsqkit.testing.remote import RemoteNsqd


def make(backend: Any, **options: object) -> object:
    clock = make_clock("running", backend)
    return make_backend(backend, nsqd_options(options), clock, seed=None, given=options, named_topics=set)


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        (None, EmbeddedNsqd),
        ("embedded", EmbeddedNsqd),
        ("process", ProcessNsqd),
        (["nsqd"], ProcessNsqd),
        (("nsqd", "--verbose"), ProcessNsqd),
        ("127.0.0.1:4150", RemoteNsqd),
        ("[::1]:4150,127.0.0.1:80", RemoteNsqd),
    ],
    ids=str,
)
def test_backend_is_chosen_by(backend: str | Sequence[str] | None, kind: type[object]) -> None:
    assert type(make(backend)) is kind


@pytest.mark.parametrize("backend", ["emmbedded", "", [], [1], 5, "127.0.0.1:x", "127.0.0.1:65535"], ids=str)
def test_other_backends_are_refused(backend: object) -> None:
    with pytest.raises(OptionError):
        make(backend)


def test_options_of_a_running_nsqd_cannot_be_set() -> None:
    with pytest.raises(Unsupported, match="the options msg_timeout, snappy cannot be set with the backend '127"):
        make("127.0.0.1:4150", msg_timeout=1, snappy=False)


def test_process_needs_http() -> None:
    with pytest.raises(OptionError, match="http_address is empty"):
        make("process", http_address="")


def test_clock_of_an_embedded_broker_is_controlled() -> None:
    clock = ControlledClock()
    assert make_clock(clock, "embedded") is clock
    assert make_clock("manual", None).mode == "manual"
    with pytest.raises(OptionError, match="mode"):
        make_clock("fast", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["process", ["nsqd"], "127.0.0.1:4150"], ids=str)
def test_clock_of_another_process_cannot_be_moved(backend: str | list[str]) -> None:
    for mode in ("running", "real"):
        clock = make_clock(mode, backend)
        for move in (lambda clock=clock: clock.advance(1), clock.advance_to_next):
            with pytest.raises(Unsupported, match="the clock cannot be moved"):
                move()
    for wrong in ("manual", "auto", ControlledClock()):
        with pytest.raises(Unsupported, match="a clock that the test moves"):
            make_clock(wrong, backend)
