"""The columns of the source: one declared table, and the projection a query asked for.

Invariant: the Arrow form of every type is exactly what Spark expects of it (32-bit offsets, microseconds in UTC),
because Spark compares schemas for equality. Pure; pyspark is imported only where its types are handed in.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from spark_connector.errors import OptionError


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
ALIASES = {"brokerName": "broker", "keys": "key", "tags": "tag", "userProperties": "properties"}
"""Other names of columns, for who asks for them by `columns` or a schema; they are not among "all columns"."""
COLUMN_TYPES: dict[str, str] = {column.name: column.type for column in COLUMNS}


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a half sentence that names the closest known word, empty if none is close."""
    folded = {word.lower(): word for word in known}
    found = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.5)
    return f"; did you mean {folded[found[0]]!r}?" if found else ""


def check_column(name: str) -> str:
    """Return the column's name in its own spelling; raises OptionError naming the nearest for an unknown one."""
    for known in (*COLUMN_TYPES, *ALIASES):
        if known.lower() == name.lower():
            return known
    raise OptionError(
        f"unknown column {name!r}{nearest(name, (*COLUMN_TYPES, *ALIASES))} Columns: {', '.join(COLUMN_TYPES)}"
    )


def column_type(name: str) -> str:
    """Spark SQL type of a column by one of its names."""
    return COLUMN_TYPES[ALIASES.get(name, name)]


def schema_ddl(columns: Sequence[str], *, properties: bool = True) -> str:
    """Spark SQL schema text of the wanted columns; when none are named all of them, with or without `properties`."""
    names = [check_column(name) for name in columns]
    names = names or [name for name in COLUMN_TYPES if properties or name != "properties"]
    return ", ".join(f"{name} {column_type(name)}" for name in names)


def check_projection(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Check a schema given by the user as (name, Spark type) pairs and return the columns to decode, in its order."""
    names = []
    for name, type_ in fields:
        known = check_column(name)
        if type_ != column_type(known):
            raise OptionError(f"column {known!r} is {column_type(known)}, not {type_}: cast it after load()")
        names.append(known)
    return tuple(names)
