"""Makes ``format("nsq")`` known to Spark, which imports each top-level module whose name begins with ``pyspark_``.

Spark does so once for each session that uses any Python data source, and an error would fail all of them. So nsqkit is
imported when the source is used.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Returns an ``NsqSource`` when it is called.

    Raises:
        ImportError: pyspark is older than 4.2, or pyarrow is missing.
    """

    def __new__(cls, options: MutableMapping[str, str]) -> Any:
        from nsqkit.spark.source import NsqSource

        return NsqSource(options)

    @classmethod
    def name(cls) -> str:
        return "nsq"
