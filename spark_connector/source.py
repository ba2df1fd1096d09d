"""The data source `rocketmq` as Spark sees it: name, schema, readers, writers.

Invariant: options are checked before any broker is asked, so a misspelled one fails at once and by name. Importing
this module needs pyspark but neither pyarrow nor numpy. Thread rule: Spark makes one object per use, in processes of
its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from spark_connector.errors import OptionError
from spark_connector.options.catalog_tables import is_table, keep_options, of_side, own_options, with_kept_options
from spark_connector.options.read_write import ReadOptions, WriteOptions, parse_read, parse_write
from spark_connector.options.schema import schema_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from spark_connector.reading.batch_reader import RocketMQBatchReader
    from spark_connector.reading.stream_reader import RefusedStream, RocketMQStreamReader
    from spark_connector.writing.writer import RocketMQBatchWriter, RocketMQStreamWriter


class RocketMQDataSource(DataSource):
    """`spark.read`, `readStream`, `write` and `writeStream` with `.format("rocketmq")`."""

    @classmethod
    def name(cls) -> str:
        """Return what goes into `.format(...)`."""
        return "rocketmq"

    def schema(self) -> str | StructType:
        """All columns, or those of the option `columns`; with `decode` also what bodies hold."""
        given = own_options(self.options)
        if not is_table(self.options):
            return _columns(parse_read(given))
        columns = _columns(parse_read(of_side(given, ReadOptions)))
        parse_write(of_side(given, WriteOptions))
        if isinstance(columns, str):
            from spark_connector.decode.ddl import parse_columns

            columns = parse_columns(columns)
        return keep_options(columns, given)

    def reader(self, schema: StructType) -> RocketMQBatchReader:
        """Plan `spark.read`: called by Spark in a process of the driver's side."""
        from spark_connector.reading.batch_reader import RocketMQBatchReader

        return RocketMQBatchReader(schema, self._read_options(schema))

    def streamReader(self, schema: StructType) -> RocketMQStreamReader | RefusedStream:  # noqa: N802 - Spark's name
        """For `spark.readStream`."""
        from spark_connector.reading.stream_reader import RefusedStream, RocketMQStreamReader

        try:
            return RocketMQStreamReader(schema, self._read_options(schema))
        except OptionError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQBatchWriter:
        """Plan `df.write`: called by Spark in a process of the driver's side."""
        from spark_connector.writing.writer import RocketMQBatchWriter

        if not with_kept_options(self.options, schema, WriteOptions):
            # Spark does the same for CREATE TABLE ... AS SELECT, whose options would be ignored: rows would go to
            # whatever listens on this machine.
            raise OptionError(
                "no option says where the rows go, not even 'nameServer'. CREATE TABLE … AS SELECT hands no options "
                "over: make the table first, then INSERT INTO it."
            )
        return RocketMQBatchWriter(schema, self._write_options(schema), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: N802 - Spark's name
        """For `df.writeStream`."""
        from spark_connector.writing.writer import RocketMQStreamWriter

        return RocketMQStreamWriter(schema, self._write_options(schema), overwrite=overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        given = with_kept_options(self.options, schema, ReadOptions)
        if not given:
            raise OptionError(
                "no option says what to read. A catalog table keeps its options only when it is made without a list of "
                "columns; the option 'columns' chooses them."
            )
        return parse_read(given)

    def _write_options(self, schema: StructType) -> WriteOptions:
        return parse_write(with_kept_options(self.options, schema, WriteOptions))


def _columns(options: ReadOptions) -> str | StructType:
    """The columns these options ask for."""
    if options.decode is None:
        return schema_ddl(
            options.columns,
            properties=options.include_properties,
            headers=options.include_headers,
            kafka=options.schema == "kafka",
        )
    from spark_connector.decode.plan import all_columns, plan_decoding, project
    from spark_connector.reading.sample import sample_bodies

    decoding = plan_decoding(options, None, sample_bodies)
    assert decoding is not None
    return project(all_columns(decoding), options.columns, properties=options.include_properties)


def register(spark: SparkSession) -> None:
    """Make `.format("rocketmq")` known where Spark does not find it by itself (code shipped as a zip or wheel)."""
    spark.dataSource.register(RocketMQDataSource)
