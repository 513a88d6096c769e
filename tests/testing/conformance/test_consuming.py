from __future__ import annotations

import pytest

from nsqkit.testing.conformance import consuming
from tests.testing.conformance.brokers import check_subject


@pytest.mark.parametrize("subject", ["SUB", "RDY", "CLS", "HEARTBEAT", "SAMPLING"])
def test_only_a_right_broker_passes(subject: str):
    check_subject(*vars(consuming)[subject])
