"""`register_topics()`: a view of every topic, so that SQL finds them by name.

    for name in register_topics(spark, nameServer="127.0.0.1:9876"):
        spark.sql(f"SELECT count(*) FROM `{name}`").show()

Views belong to the session and keep all options, secrets too; a catalog table (`CREATE TABLE … USING rocketmq`) stays
when the session ends. Invariant: views are made of all topics that were asked for or of none. Thread rule: call it from
the session's thread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from remoting.protocol.errors import LocalMisuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS_MAX = 200
"""Topics registered at once; each takes Spark about half a second, because it asks a Python process for the columns."""


def register_topics(
    spark: SparkSession,
    pattern: str = ".*",
    *,
    streaming: bool = False,
    topics_max: int = TOPICS_MAX,
    **options: object,
) -> list[str]:
    """Make a temporary view of every topic whose whole name matches `pattern`; returns their names, sorted.

    `options` are those of `spark.read` (`spark.readStream` with `streaming`), all but what to read. Raises LocalMisuse
    when there are more topics than `topics_max` or an option says what to read, OptionError for other wrong options.
    """
    from spark_connector.options.read_write import parse_read
    from spark_connector.reading.bounds import BoundsWatch
    from spark_connector.reading.selection import select

    wrong = [name for name in options if name.lower() in {"topic", "topicpattern", "assign", "mqttfilter", "subscribe"}]
    if wrong:
        raise LocalMisuse(f"the option {wrong[0]!r} is not for register_topics: `pattern` chooses the topics.")
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    parsed = parse_read({**given, "topicPattern": pattern})
    names = sorted({key.topic for key in BoundsWatch(parsed, select(parsed)).read()})
    if len(names) > topics_max:
        raise LocalMisuse(
            f"{len(names)} topics match {pattern!r}, at most {topics_max} are registered: narrow `pattern`."
        )
    frames = []
    for name in names:
        reader = (spark.readStream if streaming else spark.read).format("rocketmq")
        frames.append(reader.options(**given).option("topic", name).load())
    for name, frame in zip(names, frames, strict=True):
        frame.createOrReplaceTempView(name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name}`")
    return names
