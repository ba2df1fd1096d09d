"""Spark's process: the example's queries, each kept running from its checkpoint, reported as JSON lines.

Invariant: all progress lies in the checkpoints below the run's folder; killed at any point and started again it
continues without losing or repeating a row. A query that fails is started again, said in one sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightmq.demo.query import KeptQuery, begin, say, serve, short_session
from lightmq.spark import report_queries

if TYPE_CHECKING:
    from kit.stage import Example, Stage


def drive(example: Example, stage: Stage) -> int:
    """Run the queries until told to stop; status 1 when one was given up."""
    assert example.queries is not None
    spark, archive = short_session(f"lightmq-{example.name}", example.settings)
    report_queries(spark, stage.server)
    queries = [KeptQuery(name, start, say) for name, start in example.queries(spark, stage).items()]

    def batch() -> None:
        if example.batch is not None:
            example.batch(spark, stage)

    serve(queries, lambda wanted: begin(queries, spark.version, wanted), {"batch": batch})
    archive.stop(spark)
    return 1 if any(query.failed is not None for query in queries) else 0
