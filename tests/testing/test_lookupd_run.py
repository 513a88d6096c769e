from __future__ import annotations

import pytest

from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.lookup_faults import LookupFaults
from nsqkit.testing.lookupd_run import NsqlookupdRun
from nsqkit.testing.options import nsqlookupd_options
from nsqkit.testing.ports import KeptPort


@pytest.mark.anyio
async def test_run_listens_on_the_kept_ports() -> None:
    tcp_port, http_port = KeptPort("127.0.0.1:0"), KeptPort("127.0.0.1:0")
    for _ in range(2):
        async with NsqlookupdRun(nsqlookupd_options({}), tcp_port, http_port, ControlledClock(), LookupFaults()) as run:
            assert (run.tcp_address, run.http_address) == (tcp_port.address, http_port.address)
            assert run.info.tcp_port == int(tcp_port.address.partition(":")[2])
