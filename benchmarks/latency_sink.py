"""A Spark sink that records the age of each row on arrival: the body begins with the time it was published (ns)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_connector.worker import begin_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class AgeSink(DataSource):
    """`format("ages")`, option `path`: a folder to which every task adds the ages of its rows, one number a line."""

    @classmethod
    def name(cls) -> str:
        """Return the argument of `.format(...)`."""
        return "ages"

    def streamWriter(self, schema: StructType, overwrite: bool) -> AgeWriter:  # noqa: N802, ARG002 - Spark's name
        """For `df.writeStream`."""
        begin_task()
        return AgeWriter(self.options["path"])


class AgeWriter(DataSourceStreamArrowWriter):
    """Writes ages in ms."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Record the ages of the rows of one task."""
        begin_task()
        with Path(self._path, "ages").open("a") as file:
            for batch in iterator:
                now = time.time_ns()
                bodies: Any = batch.column("body").to_pylist()
                file.write("".join(f"{(now - int(body[:19])) / 1e6:.2f}\n" for body in bodies))
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do."""

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do."""
