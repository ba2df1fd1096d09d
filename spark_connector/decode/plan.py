"""What a query decodes, decided on the driver, and what its tasks do with every batch.

Driver. Invariant: a `Decoding` is plain data that can be pickled; every file was read and every schema checked when it
was made, so a task can fail only on bodies. Thread rule: pure, but for the files and brokers that options name.

Tasks: message columns in, message and decoded columns out. Invariant: as many rows leave as came, in their order; a
decoder that breaks this fails the task. The body is asked of the source even where the query does not show it. Thread
rule: one task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.types import (
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_connector.decode.ddl import parse_columns
from spark_connector.errors import CorruptBody, OptionError
from spark_connector.options.option_table import option_name
from spark_connector.options.read_write import FAILFAST, ReadOptions
from spark_connector.options.schema import ALIASES, COLUMN_TYPES, column_type, nearest
from spark_connector.queues import QueueKey

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_connector.brokers import GroupMaster
    from spark_connector.decode.decoded import Decoded


Sample = Callable[[ReadOptions], Sequence[bytes]]
"""Returns a bounded sample of the newest bodies that a query would read."""
CORRUPT = "_corrupt"
"""The column with the reason why a body does not fit; null where it does."""
_RESERVED = frozenset(name.lower() for name in (*COLUMN_TYPES, *ALIASES, CORRUPT))
"""Names of other columns, which a field cannot have."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """What bodies are and which columns they become."""

    kind: str
    fields: StructType
    """Everything that bodies hold, in order."""
    column: str | None = None
    """The struct column around all fields; None for a column each."""
    failfast: bool = False
    detail: Any = None
    """What the format's own decoder was given, by its plan."""

    def columns(self) -> StructType:
        """The columns beside the message columns."""
        made = self.fields.fields if self.column is None else [StructField(self.column, self.fields)]
        return StructType([*made, StructField(CORRUPT, StringType())])


def plan_decoding(options: ReadOptions, given: StructType | None, sample: Sample) -> Decoding | None:
    """Return what the options ask for, None without `decode`.

    `given` is the schema of the query where there is one, `sample` reads the bodies for `inferSchema`.
    """
    if options.decode is None:
        return None
    fields, detail = _PLANS[options.decode](options, given, sample)
    _check_names(options, fields)
    return Decoding(options.decode, fields, options.decode_column, options.decode_mode == FAILFAST, detail)


def all_columns(decoding: Decoding) -> StructType:
    """Message columns and decoded ones, as `load()` without a projection has them."""
    message = parse_columns(", ".join(f"{name} {type_}" for name, type_ in COLUMN_TYPES.items()))
    return StructType([*message.fields, *decoding.columns().fields])


def project(columns: StructType, names: Sequence[str], *, properties: bool = True) -> StructType:
    """The named columns; when none is named all of them, with or without `properties`. OptionError for unknown ones."""
    if names:
        return StructType([find_column(columns.fields, name) for name in names])
    return StructType([column for column in columns.fields if properties or column.name != "properties"])


def check_given(decoding: Decoding, given: StructType) -> StructType:
    """Check the schema of a query against what there is and return it in the columns' own spelling."""
    known = all_columns(decoding).fields
    found = []
    for field in given.fields:
        column = find_column(known, field.name)
        if column.dataType.simpleString() != field.dataType.simpleString():
            raise OptionError(
                f"column {column.name!r} is {column.dataType.simpleString()}, not {field.dataType.simpleString()}: "
                "cast it after load()"
            )
        found.append(StructField(column.name, field.dataType))
    return StructType(found)


def find_column(columns: Iterable[StructField], name: str) -> StructField:
    """The column of this name, without case; OptionError names the nearest."""
    known = {column.name.lower(): column for column in columns}
    for alias in ALIASES:
        if alias.lower() == name.lower():
            return parse_columns(f"{alias} {column_type(alias)}").fields[0]
    if name.lower() not in known:
        names = [column.name for column in known.values()]
        raise OptionError(f"unknown column {name!r}{nearest(name, names) or '.'} Columns: {', '.join(names)}")
    return known[name.lower()]


def _check_names(options: ReadOptions, fields: StructType) -> None:
    """Refuse fields that would hide a message column, and the struct column too."""
    if options.decode_column is not None:
        if options.decode_column.lower() in _RESERVED:
            raise OptionError(f"option 'decodeColumn' = {options.decode_column!r} is the name of another column")
        return
    for name in fields.names:
        if name.lower() in _RESERVED:
            raise OptionError(
                f"option 'decode' = {options.decode}: the field {name!r} of the bodies has the name of another column; "
                "give the option 'decodeColumn' a name for one struct column that holds the fields"
            )


def _plan_json(options: ReadOptions, given: StructType | None, sample: Sample) -> tuple[StructType, Any]:
    if options.decode_schema is not None:
        try:
            fields = parse_columns(options.decode_schema)
        except ValueError as failure:
            raise OptionError(f"option 'decodeSchema' = {options.decode_schema!r}: {failure}") from None
    elif given is not None:
        fields = _fields_given(options, given)
    elif options.infer_schema:
        from spark_connector.decode.json.values import infer_fields

        fields = infer_fields(options, sample)
    else:
        raise OptionError(
            "option 'decode' = json needs to know the fields: the option 'decodeSchema' (`celsius double, at "
            "timestamp`), 'inferSchema' = true, or .schema(...) with them"
        )
    _check_json_maps(fields)
    idle = [name for name in ("timestamp_unit", "timestamp_format") if getattr(options, name) is not None]
    if idle and not any(isinstance(part, TimestampType | TimestampNTZType) for part in _parts(fields)):
        raise OptionError(f"option {option_name(idle[0])!r} does nothing: no field of the schema is a timestamp")
    return fields, (options.timestamp_unit, options.timestamp_format)


def _fields_given(options: ReadOptions, given: StructType) -> StructType:
    """The fields of a schema that holds message columns, too."""
    if options.decode_column is None:
        return StructType([field for field in given.fields if field.name.lower() not in _RESERVED])
    for field in given.fields:
        if field.name.lower() == options.decode_column.lower():
            if not isinstance(field.dataType, StructType):
                raise OptionError(f"column {field.name!r} holds the fields of bodies and must be a struct")
            return field.dataType
    return StructType([])


def _check_json_maps(type_: Any) -> None:
    """Keys of a JSON object are text."""
    for part in _parts(type_):
        if isinstance(part, MapType) and not isinstance(part.keyType, StringType):
            raise OptionError(f"option 'decodeSchema': {part.simpleString()}: the keys of JSON objects are strings")


def _parts(type_: Any) -> Iterable[Any]:
    yield type_
    inner = [getattr(type_, name) for name in ("elementType", "valueType") if hasattr(type_, name)]
    for one in [*inner, *(field.dataType for field in getattr(type_, "fields", ()))]:
        yield from _parts(one)


def _plan_avro(options: ReadOptions, _: StructType | None, __: Sample) -> tuple[StructType, Any]:
    from spark_connector.decode.avro import plan_avro

    return plan_avro(options.decode_schema or "")


def _plan_protobuf(options: ReadOptions, _: StructType | None, __: Sample) -> tuple[StructType, Any]:
    from spark_connector.decode.protobuf import plan_protobuf

    return plan_protobuf(options.decode_schema or "", options.message_type or "")


def _plan_sparkplug(_: ReadOptions, __: StructType | None, ___: Sample) -> tuple[StructType, Any]:
    from spark_connector.decode.sparkplug.payload import plan_sparkplug

    return plan_sparkplug()


_PLANS = {"json": _plan_json, "avro": _plan_avro, "protobuf": _plan_protobuf, "sparkplug": _plan_sparkplug}


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
                f"queue {key}, offset {offset}: {decoded.reasons[row]} (the option 'decodeMode' is failfast)"
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

        return JsonDecoder(schema, *decoding.detail)
    if decoding.kind == "avro":
        from spark_connector.decode.avro import AvroDecoder

        return AvroDecoder(schema, decoding.detail)
    if decoding.kind == "protobuf":
        from spark_connector.decode.protobuf import ProtobufDecoder

        return ProtobufDecoder(schema, decoding.detail)
    from spark_connector.decode.sparkplug.bodies import SparkplugDecoder
    from spark_connector.decode.sparkplug.payload import Births

    return SparkplugDecoder(schema, Births(options, masters))
