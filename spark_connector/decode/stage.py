"""Message columns in, message and decoded columns out: what a task does with every batch of a query that decodes.

Invariant: as many rows leave as came, in their order; a decoder that breaks this fails the task. The body is asked of
the source even where the query does not show it. Thread rule: one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.types import LongType, StructField, StructType

from spark_connector.decode.errors import CorruptBody
from spark_connector.decode.plan import CORRUPT, Decoding, Sample, all_columns, check_given, plan_decoding
from spark_connector.options.read_write import ReadOptions
from spark_connector.options.schema import ALIASES, COLUMN_TYPES
from spark_connector.queues import QueueKey

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_connector.brokers.masters import GroupMaster
    from spark_connector.decode.decoded import Decoded

POSITION = "_position"
"""Where a record stands in its broker's log; the source makes this column for decoders only."""
BODY_BYTES_MAX = 64 * 1024 * 1024
"""Body bytes decoded at once; a batch with more is cut, because decoders hold a body several times."""
_NEEDS = {"sparkplug": ("mqttTopic", "storeTimestamp", POSITION)}


class BodyDecoder(Protocol):
    """Makes columns of bodies: one value per body and field, whatever the bytes are."""

    def decode(self, bodies: pa.Array, batch: pa.RecordBatch, key: QueueKey) -> Decoded:
        """Return one array per field; `batch` holds what the format needs beside the bodies."""
        ...


@dataclass(frozen=True, slots=True)
class DecodeStage:
    """Which columns a query wants and what bodies are; goes with the reader to its tasks."""

    decoding: Decoding
    wanted: StructType

    @property
    def fields(self) -> StructType:
        """The fields to decode: all of them where the verdict is wanted, else those that are shown."""
        decoding = self.decoding
        if decoding.column is not None or CORRUPT in self.wanted.names or decoding.failfast:
            return decoding.fields
        return StructType([field for field in decoding.fields if field.name in self.wanted.names])

    @property
    def source(self) -> StructType:
        """The columns to ask of the source."""
        shown = [field.name for field in self.wanted.fields if is_message_column(field.name)]
        needed = ["body", *_NEEDS.get(self.decoding.kind, ()), *(["queueOffset"] if self.decoding.failfast else [])]
        types = {field.name: field for field in (*all_columns(self.decoding).fields, *self.wanted.fields)}
        types[POSITION] = StructField(POSITION, LongType())
        return StructType([types[name] for name in dict.fromkeys([*shown, *needed])])

    def open(self, options: ReadOptions, masters: Mapping[str, GroupMaster]) -> StageTask:
        """Make the decoder, in the task."""
        return StageTask(self, open_decoder(self.decoding, self.fields, options, masters))


class StageTask:
    """The stage at work in one task."""

    def __init__(self, stage: DecodeStage, decoder: BodyDecoder) -> None:
        from spark_connector.columns.arrow import arrow_schema

        self._stage = stage
        self._decoder = decoder
        self._fields = stage.fields.names
        self._struct = None
        self._schema = arrow_schema(stage.wanted)
        if stage.decoding.column is not None:
            self._struct = arrow_schema(stage.decoding.fields)

    def apply(self, batch: pa.RecordBatch, key: QueueKey) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch with the columns that are wanted."""
        rows = batch.num_rows
        pieces = max(1, min(rows, -(-batch.column("body").nbytes // BODY_BYTES_MAX)))
        size = max(1, -(-rows // pieces))
        for begin in range(0, rows, size):
            yield self._decode(batch.slice(begin, size), key)

    def _decode(self, batch: pa.RecordBatch, key: QueueKey) -> pa.RecordBatch:
        import pyarrow as pa

        from spark_connector.decode.decoded import reason_column

        bodies = batch.column("body")
        if bodies.null_count:
            bodies = bodies.fill_null(b"")
        decoded = self._decoder.decode(bodies, batch, key)
        if self._stage.decoding.failfast and decoded.reasons:
            row = min(decoded.reasons)
            offset = batch.column("queueOffset")[row].as_py()
            raise CorruptBody(
                f"queue {key.topic}/{key.broker}/{key.queue}, offset {offset}: {decoded.reasons[row]} "
                "(the option 'decodeMode' is failfast)"
            )
        made: dict[str, Any] = dict(zip(self._fields, decoded.columns, strict=True))
        if self._struct is not None:
            column = pa.StructArray.from_arrays(decoded.columns, fields=list(self._struct))
            made = {str(self._stage.decoding.column): column}
        if CORRUPT in self._schema.names:
            made[CORRUPT] = reason_column(decoded.reasons, batch.num_rows)
        arrays = [made[name] if name in made else batch.column(name) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def is_message_column(name: str) -> bool:
    """Whether the source itself has a column of this name."""
    return name in COLUMN_TYPES or name in ALIASES


def plan_stage(schema: StructType, options: ReadOptions, sample: Sample) -> tuple[StructType, DecodeStage | None]:
    """Check the schema of a query that decodes; return it in its own spelling, and what its tasks do.

    None where no decoded column is wanted: then bodies cost nothing.
    """
    decoding = plan_decoding(options, schema, sample)
    assert decoding is not None
    wanted = check_given(decoding, schema)
    if all(map(is_message_column, wanted.names)) and not decoding.failfast:
        return wanted, None
    return wanted, DecodeStage(decoding, wanted)


def open_decoder(
    decoding: Decoding, fields: StructType, options: ReadOptions, masters: Mapping[str, GroupMaster]
) -> BodyDecoder:
    """Make what decodes the bodies of one task."""
    from spark_connector.columns.arrow import arrow_schema

    schema = arrow_schema(fields)
    if decoding.kind == "json":
        from spark_connector.decode.json.bodies import JsonDecoder

        return JsonDecoder(schema)
    if decoding.kind == "avro":
        from spark_connector.decode.avro import AvroDecoder

        return AvroDecoder(schema, decoding.detail)
    if decoding.kind == "protobuf":
        from spark_connector.decode.protobuf_bodies import ProtobufDecoder

        return ProtobufDecoder(schema, decoding.detail)
    from spark_connector.decode.sparkplug.births import Births
    from spark_connector.decode.sparkplug.bodies import SparkplugDecoder

    return SparkplugDecoder(schema, Births(options, masters))
