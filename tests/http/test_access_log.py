from __future__ import annotations

import logging
from typing import Any

import pytest

from nsqkit.clock import ManualClock
from nsqkit.http.access_log import logged
from nsqkit.http.messages import HTTPError, Request, Response

pytestmark = pytest.mark.anyio

logger = logging.getLogger("nsqkit.test")


async def answer_later(request: Request) -> Response:
    return Response.plain("x")


def refuse(request: Request) -> Response:
    raise HTTPError(404, "TOPIC_NOT_FOUND")


@pytest.mark.parametrize(
    ("handle", "status"), [(lambda request: Response.plain("x"), 200), (answer_later, 200), (refuse, 404)]
)
async def test_status_request_client_and_duration_are_logged(handle, status, caplog):
    caplog.set_level(logging.INFO)
    clock = ManualClock()

    def slow(request: Request) -> Any:
        clock.advance(0.0000015)
        return handle(request)

    handler = logged(slow, logger=logger, clock=clock)
    response = handler(Request.of("GET", "/a?b=c", remote_address="10.0.0.1:9"))
    assert not isinstance(response, Response)
    assert (await response).status == status
    assert caplog.messages == [f"{status} GET /a?b=c (10.0.0.1:9) 1.5µs"]


async def test_excluded_paths_are_not_logged(caplog):
    caplog.set_level(logging.INFO)
    handler = logged(answer_later, logger=logger, clock=ManualClock(), unlogged={"/pub"})
    for target in ("/pub?topic=t", "/mpub"):
        response = handler(Request.of("POST", target))
        assert not isinstance(response, Response)
        assert (await response).body == b"x"
    assert caplog.messages == ["200 POST /mpub () 0s"]
