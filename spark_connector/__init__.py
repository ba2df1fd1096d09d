"""The PySpark connector `format("rocketmq")`; `register(spark)` for sessions that do not find it by themselves.

Importing the package imports nothing else, so that planning code runs without pyspark, pyarrow or numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `.format("rocketmq")` known to a session; not needed where this package is installed."""
    from spark_connector.source import register as register_source

    register_source(spark)
