"""Where messages of a Sparkplug node are missing: the sequence numbers of its messages in the order of the log.

A node numbers all its messages (its own and its devices') 0 to 255 and round again, beginning at 0 with each NBIRTH
(Sparkplug 3.0, section 6.4.3). They lie in several queues and so in several tasks, therefore no task can judge a gap;
Spark can, over the rows of a batch. Invariant: rows that are given complete give each gap once. Thread rule: driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMBERED = ("NBIRTH", "NDATA", "DBIRTH", "DDATA", "DDEATH")
"""Messages that carry a number."""
NUMBERS = 256


def sequence_gaps(messages: DataFrame) -> DataFrame:
    """Return a row for each message before which others of its node are missing.

    `messages` is a batch of `decode` = sparkplug with the columns `broker`, `groupId`, `edgeNodeId`, `messageType`,
    `seq` and `logPosition`; `missing` is how many (modulo 256). A node's first message in the batch is not judged.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    nodes = Window.partitionBy("broker", "groupId", "edgeNodeId").orderBy("logPosition")
    numbered = messages.where(f.col("messageType").isin(*NUMBERED) & f.col("seq").isNotNull())
    expected = numbered.withColumn("expected", (f.lag("seq").over(nodes) + 1) % NUMBERS)
    broken = expected.where("messageType != 'NBIRTH' AND seq != expected")
    missing = broken.withColumn("missing", (f.col("seq") - f.col("expected") + NUMBERS) % NUMBERS)
    return missing.select("broker", "groupId", "edgeNodeId", "messageType", "logPosition", "expected", "seq", "missing")
