"""The data source `rocketmq` as Spark sees it: name, schema, readers, writers; and its tables in a catalog.

Invariant: options are checked before any broker is asked, so a misspelled one fails at once and by name. Importing
this module needs pyspark but neither pyarrow nor numpy. Thread rule: Spark makes one object per use, in processes of
its own.

Catalog tables (`CREATE TABLE … USING rocketmq OPTIONS (…)`): Spark hands a table's options over when the table is made
and never again: reading it or inserting into it calls the source with the table's schema and no options. So the schema
carries them, as metadata of its first column, which Spark keeps in the catalog. When a table is made its options come
twice, `topic` and `option.topic`, among the table's properties; what has no such twin is no option. Invariant: options
given where the table is used win over those it was made with; no secret gets into a catalog.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

from spark_connector.errors import OptionError
from spark_connector.options.option_table import ConnectionOptions, spellings
from spark_connector.options.read_write import ReadOptions, WriteOptions, parse_read, parse_write
from spark_connector.options.schema import TAKEN, schema_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from spark_connector.reading.batch_reader import RocketMQBatchReader
    from spark_connector.reading.stream_reader import RefusedStream, RocketMQStreamReader
    from spark_connector.writing.writer import RocketMQBatchWriter, RocketMQStreamWriter


SPARK_NEEDED = "4.2"
METADATA_KEY = "rocketmq.options"
PREFIX = "option."
PROVIDER, OWNER = "provider", "owner"
"""Spark sets both for every table, and for nothing else."""
NEVER_KEPT = "secretkey"
OF_ONE_STREAM = "sinkid"
"""Names one stream's sink; a stream that writes is given nothing of a table, and its name is no other write's."""
WHAT_IS_READ = ("topic", "topic_pattern", "assign", "mqtt_filter")
"""Just one of these is given."""


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table that is being made."""
    return PROVIDER in options and (OWNER in options or any(name.startswith(PREFIX) for name in options))


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options among a table's properties; any other options as they are."""
    if not is_table(options):
        return dict(options)
    names = {name.removeprefix(PREFIX) for name in options if name.startswith(PREFIX)}
    return {name: options[PREFIX + name] for name in names}


def keep_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """The columns of a new table, which carry its options; raises OptionError for one that must not be kept."""
    if any(name.lower() == NEVER_KEPT for name in options):
        raise OptionError(
            "option 'secretKey' would be readable in the catalog for every user: make a temporary view instead "
            "(CREATE TEMPORARY VIEW … USING rocketmq)."
        )
    if any(name.lower() == OF_ONE_STREAM for name in options):
        raise OptionError(
            "option 'sinkId' does nothing in a table: it names the sink of one stream, and Spark passes a stream that "
            "writes nothing of a table. Leave it out here, and give it to .writeStream.format('rocketmq')."
        )
    from pyspark.sql.types import StructField, StructType

    first, *others = columns.fields
    metadata = dict(first.metadata or {}) | {METADATA_KEY: json.dumps(dict(sorted(options.items())))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def with_kept_options(options: Mapping[str, str], columns: StructType, side: type[ConnectionOptions]) -> dict[str, str]:
    """Options of a use together with those of the table, if `columns` are a table's; `side` is what they are for.

    A table is read and written, so it may have options of both sides.
    """
    given = own_options(options)
    kept = next((found for field in columns.fields if (found := (field.metadata or {}).get(METADATA_KEY))), None)
    if kept is None:
        return given
    anew = {_meant(name, side) for name in given} | {_meant(OF_ONE_STREAM, WriteOptions)}  # older tables may have it
    return {
        name: value for name, value in of_side(json.loads(kept), side).items() if _meant(name, side) not in anew
    } | given


def _meant(name: str, side: type[ConnectionOptions]) -> str:
    """Which option a name means; the options that choose what is read count as one."""
    lower = name.lower()
    found = spellings(side).get(TAKEN.get(lower, lower))
    if found is None:
        return lower
    return WHAT_IS_READ[0] if side is ReadOptions and found.name in WHAT_IS_READ else found.name


def of_side(options: Mapping[str, str], side: type[ConnectionOptions]) -> dict[str, str]:
    """The options without those that only the other side has; what no side has stays, to be refused by name."""
    own, others = spellings(side), spellings(ReadOptions if side is WriteOptions else WriteOptions)
    return {name: value for name, value in options.items() if name.lower() in own or name.lower() not in others}


@contextmanager
def new_enough() -> Iterator[None]:
    """Raise OptionError where something cannot be imported because Spark is too old for it.

    The package demands a version, but what is shipped with `addPyFile` or found on PYTHONPATH is not installed.
    """
    try:
        yield
    except ImportError as failure:
        if not (failure.name or "").startswith("pyspark"):
            raise
        raise OptionError(
            f"the data source 'rocketmq' needs Spark {SPARK_NEEDED} or newer, this is Spark {pyspark.__version__}: it "
            f"has no {failure.name}"
        ) from None


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
        with new_enough():
            from spark_connector.reading.batch_reader import RocketMQBatchReader

        return RocketMQBatchReader(schema, self._read_options(schema))

    def streamReader(self, schema: StructType) -> RocketMQStreamReader | RefusedStream:  # noqa: N802 - Spark's name
        """For `spark.readStream`."""
        with new_enough():
            from spark_connector.reading.stream_reader import RefusedStream, RocketMQStreamReader

        try:
            return RocketMQStreamReader(schema, self._read_options(schema))
        except OptionError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQBatchWriter:
        """Plan `df.write`: called by Spark in a process of the driver's side."""
        with new_enough():
            from spark_connector.writing.writer import RocketMQBatchWriter

        if not with_kept_options(self.options, schema, WriteOptions):
            # Spark does the same for CREATE TABLE ... AS SELECT, whose options would be ignored: rows would go to
            # whatever listens on this machine.
            raise OptionError(
                "no option names where the rows go, not even 'nameServer'. CREATE TABLE … AS SELECT hands no options "
                "over: make the table first, then INSERT INTO it."
            )
        return RocketMQBatchWriter(schema, self._write_options(schema), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: N802 - Spark's name
        """For `df.writeStream`."""
        with new_enough():
            from spark_connector.writing.writer import RocketMQStreamWriter

        return RocketMQStreamWriter(schema, self._write_options(schema), overwrite=overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        given = with_kept_options(self.options, schema, ReadOptions)
        if not given:
            raise OptionError(
                "no option names what to read. A catalog table keeps its options only when it is made without a list "
                "of columns; the option 'columns' chooses them."
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
    from spark_connector.reading.task import sample_bodies

    decoding = plan_decoding(options, None, sample_bodies)
    assert decoding is not None
    return project(all_columns(decoding), options.columns, properties=options.include_properties)


def register(spark: SparkSession) -> None:
    """Make `.format("rocketmq")` known where Spark does not find it by itself (code shipped as a zip or wheel)."""
    spark.dataSource.register(RocketMQDataSource)
