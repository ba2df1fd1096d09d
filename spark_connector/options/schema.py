"""The columns of the source: one declared table, and the projection a query asked for.

Invariant: the Arrow form of every type is exactly what Spark expects of it (32-bit offsets, microseconds in UTC),
because Spark compares schemas for equality. Pure; pyspark is imported only where its types are handed in.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from spark_connector.errors import OptionError
from spark_connector.options.kafka_names import column_hint


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its Spark SQL type and what it holds."""

    name: str
    type: str
    text: str


COLUMNS: tuple[Column, ...] = (
    Column("topic", "string", "RocketMQ topic; for MQTT messages the first level of the MQTT topic"),
    Column("mqttTopic", "string", "full MQTT topic, null for messages that did not come over MQTT"),
    Column("queueId", "int", "queue of the topic; with a filter without wildcards the light queue's 0"),
    Column("queueOffset", "bigint", "offset in that queue, dense, from 0"),
    Column("broker", "string", "broker group that holds the message"),
    Column("key", "string", "RocketMQ message keys, null if none"),
    Column("tag", "string", "RocketMQ message tag, null if none"),
    Column("body", "binary", "the payload, byte for byte"),
    Column("bornTimestamp", "timestamp", "when the publisher's side took the message"),
    Column("storeTimestamp", "timestamp", "when the broker wrote it into its log"),
    Column("clientId", "string", "MQTT client id of the publisher, null if unknown"),
    Column("qos", "int", "MQTT quality of service of the publish, null outside MQTT"),
    Column("retained", "boolean", "MQTT retain flag of the publish, null outside MQTT"),
    Column("contentType", "string", "MQTT 5 content type, null if none"),
    Column("properties", "map<string,string>", "all message properties; the last of repeated keys counts"),
    Column("traceparent", "string", "W3C trace context of the message, null if none"),
)
HEADERS = Column(
    "headers", "array<struct<key:string,value:binary>>", "all message properties, repeated ones too; null if none"
)
"""Only with `includeHeaders` or when it is named."""
KAFKA_COLUMNS: tuple[Column, ...] = (
    Column("key", "binary", "RocketMQ message keys, null if none"),
    Column("value", "binary", "the payload, byte for byte"),
    Column("topic", "string", "RocketMQ topic; for MQTT messages the first level of the MQTT topic"),
    Column("partition", "int", "queue of the topic"),
    Column("offset", "bigint", "offset in that queue"),
    Column("timestamp", "timestamp", "when the broker wrote it into its log"),
    Column("timestampType", "int", "1: the time of the log"),
)
"""With `schema` = kafka."""
ALIASES = {"brokerName": "broker", "keys": "key", "tags": "tag", "userProperties": "properties"}
KAFKA_ALIASES = {"value": "body", "partition": "queueId", "offset": "queueOffset", "timestamp": "storeTimestamp"}
"""Kafka's columns that are columns of ours."""
"""Other names of columns, for who asks for them by `columns` or a schema; they are not among "all columns"."""
COLUMN_TYPES: dict[str, str] = {column.name: column.type for column in COLUMNS}
READ_TYPES = COLUMN_TYPES | {HEADERS.name: HEADERS.type}
KAFKA_TYPES: dict[str, str] = {column.name: column.type for column in (*KAFKA_COLUMNS, HEADERS)}


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a half sentence that names the closest known word, empty if none is close."""
    folded = {word.lower(): word for word in known}
    found = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.5)
    return f"; did you mean {folded[found[0]]!r}?" if found else ""


def check_column(name: str, *, kafka: bool = False) -> str:
    """Return the column's name in its own spelling; raises OptionError naming the nearest for an unknown one."""
    columns, aliases = (KAFKA_TYPES, {}) if kafka else (READ_TYPES, ALIASES)
    for known in (*columns, *aliases):
        if known.lower() == name.lower():
            return known
    hint = "" if kafka else column_hint(name)
    if hint:
        raise OptionError(f"unknown column {name!r}: {hint}")
    raise OptionError(
        f"unknown column {name!r}{nearest(name, (*columns, *aliases)) or '.'} Columns: {', '.join(columns)}"
    )


def column_type(name: str, *, kafka: bool = False) -> str:
    """Spark SQL type of a column by one of its names."""
    return KAFKA_TYPES[name] if kafka else READ_TYPES[ALIASES.get(name, name)]


def schema_ddl(columns: Sequence[str], *, properties: bool = True, headers: bool = False, kafka: bool = False) -> str:
    """Spark SQL schema text of the wanted columns; when none are named all, with or without `properties`, `headers`."""
    names = [check_column(name, kafka=kafka) for name in columns]
    if not names:
        left_out = ({"properties"} if not properties else set()) | ({"headers"} if not headers else set())
        names = [name for name in (KAFKA_TYPES if kafka else READ_TYPES) if name not in left_out]
    elif headers and "headers" not in names:
        names.append("headers")
    return ", ".join(f"{name} {column_type(name, kafka=kafka)}" for name in names)


def check_projection(fields: Sequence[tuple[str, str]], *, kafka: bool = False) -> tuple[str, ...]:
    """Check a schema given by the user as (name, Spark type) pairs and return the columns to decode, in its order."""
    names = []
    for name, type_ in fields:
        known = check_column(name, kafka=kafka)
        own = column_type(known, kafka=kafka)
        if type_ != own:
            raise OptionError(f"column {known!r} is {own}, not {type_}: cast it after load()")
        names.append(known)
    return tuple(names)
