"""Tests of Spark jobs that use NSQ: sessions, and the death of an executor or a driver.

``pytest_plugins = ["nsqkit.spark.testing.plugin"]`` in the first ``conftest.py`` gives pytest the fixtures
``spark_session``, ``kill_executor``, ``run_driver``, ``kill_driver`` and ``standalone_master``. The brokers are those
of ``nsqkit.testing``: its ``nsqd`` and ``make_nsqd`` listen on TCP, so executors in other processes reach them. Without
pytest, use the functions of this package. docs/spark-testing.md has a test for each.
"""

from __future__ import annotations

from nsqkit.spark.testing.driver import kill_driver, run_driver
from nsqkit.spark.testing.session import CLUSTER, LOCAL, kill_executor, local_session
from nsqkit.spark.testing.standalone import standalone_cluster

__all__ = ["CLUSTER", "LOCAL", "kill_driver", "kill_executor", "local_session", "run_driver", "standalone_cluster"]
