"""The data source `rocketmq` as Spark sees it: name, schema, readers, writers.

Invariant: options are checked before any broker is asked, so a misspelled one fails at once and by name. Importing
this module needs pyspark but neither pyarrow nor numpy. Thread rule: Spark makes one object per use, in processes of
its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from spark_connector.options import parse_read, parse_write
from spark_connector.schema import schema_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from spark_connector.batch_reader import RocketMQBatchReader
    from spark_connector.stream_reader import RocketMQStreamReader
    from spark_connector.writer import RocketMQBatchWriter, RocketMQStreamWriter


class RocketMQDataSource(DataSource):
    """`spark.read`, `readStream`, `write` and `writeStream` with `.format("rocketmq")`."""

    @classmethod
    def name(cls) -> str:
        """Return what goes into `.format(...)`."""
        return "rocketmq"

    def schema(self) -> str | StructType:
        """All columns, or those of the option `columns`; with `decode` also what bodies hold."""
        options = parse_read(self.options)
        if options.decode is None:
            return schema_ddl(options.columns, properties=options.include_properties)
        from spark_connector.decode.plan import all_columns, plan_decoding, project

        decoding = plan_decoding(options, None)
        assert decoding is not None
        return project(all_columns(decoding), options.columns, properties=options.include_properties)

    def reader(self, schema: StructType) -> RocketMQBatchReader:
        """For `spark.read`."""
        from spark_connector.batch_reader import RocketMQBatchReader

        return RocketMQBatchReader(schema, parse_read(self.options))

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802 - Spark's name
        """For `spark.readStream`."""
        from spark_connector.stream_reader import RocketMQStreamReader

        return RocketMQStreamReader(schema, parse_read(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQBatchWriter:
        """For `df.write`."""
        from spark_connector.writer import RocketMQBatchWriter

        return RocketMQBatchWriter(schema, parse_write(self.options), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: N802 - Spark's name
        """For `df.writeStream`."""
        from spark_connector.writer import RocketMQStreamWriter

        return RocketMQStreamWriter(schema, parse_write(self.options), overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make `.format("rocketmq")` known where Spark does not find it by itself (code shipped as a zip or wheel)."""
    spark.dataSource.register(RocketMQDataSource)
