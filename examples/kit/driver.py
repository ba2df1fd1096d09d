"""Spark's process: the example's queries, each kept running from its checkpoint, reported as JSON lines.

Invariant: all progress lies in the checkpoints below the run's folder; killed at any point and started again it
continues without losing or repeating a row. A query that fails is started again, said in one sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightmq.demo.query import SHORT_RUN, KeptQuery, begin, say, serve
from lightmq.spark import session

if TYPE_CHECKING:
    from kit.stage import Example, Stage


def drive(example: Example, stage: Stage) -> int:
    """Run the queries until told to stop; status 1 when one was given up."""
    assert example.queries is not None
    say(event="step", text="starting its Java process")
    spark = session(f"lightmq-{example.name}", conf={**SHORT_RUN, **(example.settings or {})})
    spark.sparkContext.setLogLevel("ERROR")
    queries = [KeptQuery(name, start, say) for name, start in example.queries(spark, stage).items()]

    def batch() -> None:
        if example.batch is not None:
            example.batch(spark, stage)

    serve(queries, lambda wanted: begin(queries, spark.version, wanted), {"batch": batch})
    spark.stop()
    return 1 if any(query.failed is not None for query in queries) else 0
