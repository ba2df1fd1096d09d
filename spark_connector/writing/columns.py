"""Which columns of a DataFrame become which part of a message, decided before the first row moves.

Invariant: every column has a meaning or is one of the source's own that a sink has no use for; anything else is an
error, so no misspelled column is lost silently. Pure, but for the Arrow batches it picks columns from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_connector.errors import OptionError
from spark_connector.options.option_table import check_mqtt_topic, check_topic, check_written_topic
from spark_connector.options.read_write import WriteOptions
from spark_connector.options.schema import COLUMN_TYPES, HEADERS, KAFKA_TYPES, WRITE_COLUMNS, nearest

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = ("string", "binary")
WHOLE = ("tinyint", "smallint", "int", "bigint")
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "body": (("body", "value"), TEXT),
    "topic": (("topic",), TEXT),
    "mqttTopic": (("mqttTopic",), TEXT),
    "key": (("key", "keys"), TEXT),
    "tag": (("tag", "tags"), TEXT),
    "properties": (("properties", "userProperties"), ("map<string,string>",)),
    "headers": (("headers",), (HEADERS.type,)),
    "contentType": (("contentType",), TEXT),
    "traceparent": (("traceparent",), TEXT),
    "delay": (("delay", "delayMs"), WHOLE),
    "qos": (("qos",), WHOLE),
    "retain": (("retain", "retained"), ("boolean",)),
    "queueId": (("queueId", "partition"), WHOLE),
    "broker": (("broker",), TEXT),
}
"""Part of a message → (accepted column names, accepted Spark types)."""

NOT_FOR_MQTT = (
    "chooses a queue of a RocketMQ topic; the queue of an MQTT message follows from its topic, which keeps its order. "
    "Drop the column, or make it null in the rows of MQTT topics."
)


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Part of a message → name of the column it is taken from."""

    parts: Mapping[str, str]
    topic: str | None
    mqtt_topic: str | None
    content_type: str | None = None

    @property
    def queue_column(self) -> str:
        """What the column that chooses queues is called here."""
        return self.parts.get("queueId", "queueId")

    def pick(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the parts of a batch of rows; options stand for whole columns."""
        import pyarrow as pa

        from spark_connector.columns.layout import one

        found = {part: batch.column(name) for part, name in self.parts.items()}
        if "headers" in found:
            found["properties"] = _properties_of(found.pop("headers"))
        options = {"topic": self.topic, "mqttTopic": self.mqtt_topic, "contentType": self.content_type}
        for part, value in options.items():
            if value is not None and part not in found:
                found[part] = pa.repeat(one(value, pa.string()), batch.num_rows)
        return found


def _properties_of(headers: pa.ListArray) -> pa.MapArray:
    """Kafka's headers as properties, in their order and with their repetitions."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from spark_connector.columns import layout

    lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    edges = layout.numbers(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
    pairs = headers.flatten()
    keys, values = pc.struct_field(pairs, 0), pc.struct_field(pairs, 1)
    return pa.MapArray.from_arrays(edges, pc.fill_null(keys, ""), values)


def sink_columns(fields: Sequence[tuple[str, str]], options: WriteOptions) -> SinkColumns:
    """Match (name, Spark type) pairs to parts of a message; raises OptionError for what does not fit."""
    parts: dict[str, str] = {}
    for name, type_ in fields:
        part = _part_of(name, options)
        if part is None:
            continue
        if part in parts:
            raise OptionError(f"the columns {parts[part]!r} and {name!r} are the same to the sink: keep one")
        accepted = PARTS[part][1]
        if type_ not in accepted:
            raise OptionError(f"column {name!r} is {type_}, the sink needs {' or '.join(accepted)}")
        parts[part] = name
    if "headers" in parts and "properties" in parts:
        raise OptionError("the columns 'headers' and 'properties' are the same to the sink: keep one")
    if "body" not in parts:
        raise OptionError("the sink needs a column 'body' (or 'value'), binary or string")
    if "delay" in parts and options.batch_codec is not None:
        raise OptionError(f"column {parts['delay']!r} is not for batch topics: a record of many rows does not wait")
    if "queueId" not in parts:
        parts.pop("broker", None)  # it names the group of a queue number; without one the topic's route decides
    return _with_topics(parts, options)


def _part_of(name: str, options: WriteOptions) -> str | None:
    """The part of a message a column becomes; None for a column of a source that a sink does not need."""
    by_name = {alias.lower(): part for part, (aliases, _) in PARTS.items() for alias in aliases}
    part = by_name.get(name.lower())
    if part is not None:
        return None if part == "headers" and not options.include_headers else part
    # Rows that were read may be written as they are.
    known = {*COLUMN_TYPES, *(KAFKA_TYPES if options.schema == "kafka" else ())}
    if name.lower() in {one.lower() for one in known}:
        return None
    if name.lower() in WRITE_COLUMNS:
        raise OptionError(f"column {name!r}: {WRITE_COLUMNS[name.lower()]}")
    near = nearest(name, [alias for aliases, _ in PARTS.values() for alias in aliases]) or "."
    raise OptionError(f"the sink does not know the column {name!r}{near} Drop it or rename it")


def _with_topics(parts: dict[str, str], options: WriteOptions) -> SinkColumns:
    """Let the options win over columns and make sure that every row can have a topic."""
    if options.topic is not None:
        check_topic(options.topic, "mqttTopic")
        if wrong := check_written_topic(options.topic):
            raise OptionError(f"option 'topic': {wrong}")
    wrong = "" if options.mqtt_topic is None else check_mqtt_topic(options.mqtt_topic)
    if wrong:
        raise OptionError(f"option 'mqttTopic': {options.mqtt_topic!r}: {wrong}")
    if options.topic is not None or options.mqtt_topic is not None:
        parts = {part: name for part, name in parts.items() if part not in {"topic", "mqttTopic"}}
    elif "topic" not in parts and "mqttTopic" not in parts:
        raise OptionError(
            "where should the rows go? Set the option 'mqttTopic' or 'topic', or give a column of one of these names"
        )
    return SinkColumns(parts, options.topic, options.mqtt_topic, options.content_type)
