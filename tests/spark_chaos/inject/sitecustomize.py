"""Python imports this module when it starts: in the driver of a Spark job, its readers and its workers."""

from __future__ import annotations

import os

if "NSQKIT_FAULT" in os.environ:
    from tests.spark_chaos.fault_points import install

    install()
