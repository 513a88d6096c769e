from __future__ import annotations

import logging

import pytest

from nsqkit.http.access_log import logged
from nsqkit.http.messages import HTTPError, Request, Response

pytestmark = pytest.mark.anyio

logger = logging.getLogger("nsqkit.test")


async def soon(request: Request) -> Response:
    return Response.plain("soon")


def refuse(request: Request) -> Response:
    raise HTTPError(404, "TOPIC_NOT_FOUND")


@pytest.mark.parametrize(
    ("handle", "status"), [(lambda request: Response.plain("x"), 200), (soon, 200), (refuse, 404)]
)
async def test_a_line_tells_what_was_answered_to_whom_and_in_what_time(handle, status, caplog):
    caplog.set_level(logging.INFO)
    times = iter([1_000, 2_500])
    handler = logged(handle, logger=logger, now_ns=lambda: next(times), remote_address="10.0.0.1:9")
    response = handler(Request.of("GET", "/a?b=c"))
    assert not isinstance(response, Response)
    assert (await response).status == status
    assert caplog.messages == [f"{status} GET /a?b=c (10.0.0.1:9) 1.5µs"]


async def test_some_paths_have_no_line(caplog):
    caplog.set_level(logging.INFO)
    handler = logged(soon, logger=logger, now_ns=lambda: 0, remote_address="", unlogged={"/pub"})
    for target in ("/pub?topic=t", "/mpub"):
        response = handler(Request.of("POST", target))
        assert not isinstance(response, Response)
        assert (await response).body == b"soon"
    assert caplog.messages == ["200 POST /mpub () 0s"]
