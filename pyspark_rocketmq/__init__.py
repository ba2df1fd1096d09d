"""How Spark finds `format("rocketmq")` by itself: it looks for `DefaultSource` in packages `pyspark_*`.

Invariant: importing this never raises. A single failing package of that prefix would switch discovery off for all of
them, so whatever is missing or broken here, Spark merely does not find this one.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(Exception):
    from spark_connector.source import RocketMQDataSource as DefaultSource  # noqa: F401 - Spark looks for the name
