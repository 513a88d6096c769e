"""The service under test, with a fault that is planted in it if ``--planted`` names one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest
from orders.billing import Billing, Declined
from planted import PLANTED

from nsqkit.testing import NsqdServer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--planted", choices=sorted(PLANTED), help="test the service with this fault")


class Payments:
    """The payments of a test: each is made at once, is declined, or waits for the test."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        self.errors: list[Exception] = []
        self.may_end: anyio.Event | None = None
        self.begun = anyio.Event()

    async def charge(self, order: str) -> None:
        self.begun.set()
        if self.may_end is not None:
            await self.may_end.wait()
        if self.errors:
            raise self.errors.pop()
        self.charged.append(order)


@pytest.fixture(autouse=True)
def no_unexpected_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if the service has logged an exception other than a declined payment."""
    yield
    logged = [record.exc_info[1] for record in caplog.get_records("call") if record.exc_info]
    unexpected = [error for error in logged if not isinstance(error, Declined)]
    assert not unexpected, f"logged: {unexpected}"


@pytest.fixture
def start(request: pytest.FixtureRequest, nsqd: NsqdServer) -> Callable[..., AbstractAsyncContextManager[Billing]]:
    """A function that runs the service for ``async with``."""
    make = PLANTED.get(request.config.getoption("--planted"), Billing)

    @asynccontextmanager
    async def running(payments: Payments) -> AsyncIterator[Billing]:
        billing = make(nsqd.tcp_address, payments.charge, nsqd.clock)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(billing.run)
            await nsqd.wait_for(lambda: any(client.ready_count for client in nsqd.connections))
            yield billing
            billing.stop()

    return running
