"""The columns of the source: one declared table, and the projection of a query; and Kafka's names for the same things.

Invariant: the Arrow form of every type is exactly what Spark expects of it (32-bit offsets, microseconds in UTC),
because Spark compares schemas for equality. A name of Kafka's that has another one here is answered with it, never with
"unknown"; with the option `schema` = kafka the names that mean the same are accepted as they are. Pure; pyspark is
imported only where its types are handed in.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_connector.errors import OptionError

TAKEN = {
    "kafka.bootstrap.servers": "nameserver",
    "kafka.group.id": "consumergroup",
    "fetchoffset.numretries": "fetchretries",
    "fetchoffset.retryintervalms": "fetchretryintervalms",
    "kafkaconsumer.polltimeoutms": "pulltimeoutms",
}
"""Options that `schema` = kafka takes under Kafka's name."""
OPTIONS = {
    "kafka.bootstrap.servers": "the address (host:port of a name server or broker) is the option 'nameServer' here",
    "kafka.group.id": "the group whose progress brokers show is the option 'consumerGroup' here",
    "groupidprefix": "queries need no group here; 'consumerGroup' names one whose progress the broker shows",
    "fetchoffset.numretries": "it is the option 'fetchRetries' here",
    "fetchoffset.retryintervalms": "it is the option 'fetchRetryIntervalMs' here",
    "kafkaconsumer.polltimeoutms": "it is the option 'pullTimeoutMs' here",
    "kafka.security.protocol": "TLS is the option 'tls' here, keys are 'accessKey' and 'secretKey'",
    "kafka.acks": "what was acknowledged is durable here, the option 'delivery' chooses how often rows may appear",
}
"""Kafka's options, in lower case → what to use instead."""
PREFIXES = {
    "kafka.ssl.": "TLS is the options 'tls', 'tlsCaFile', 'tlsCertificateFile' and 'tlsKeyFile' here",
    "kafka.sasl.": "keys are the options 'accessKey' and 'secretKey' here",
    "kafkaconsumer.": "connections are pooled without settings here: leave it out",
    "kafka.": "there are no options of Kafka's clients here: leave it out",
}
READ_COLUMNS = {
    "value": "the payload is the column 'body' here",
    "partition": "it is the column 'queueId' here",
    "offset": "it is the column 'queueOffset' here",
    "timestamp": "it is the column 'storeTimestamp' (when the broker wrote it) or 'bornTimestamp' (the publisher) here",
    "timestamptype": "there are two columns instead, 'storeTimestamp' and 'bornTimestamp'",
}
WRITE_COLUMNS = dict.fromkeys(
    ("offset", "timestamp", "timestamptype"), "Kafka's source has it and no sink needs it: drop it"
)
ALL_COLUMNS = "; the option 'schema' = kafka gives all of Kafka's columns"


def option_hint(name: str) -> str:
    """What to use instead of an option of Kafka's; empty for a name that is none."""
    lower = name.lower()
    if lower in OPTIONS:
        return OPTIONS[lower]
    return next((hint for prefix, hint in PREFIXES.items() if lower.startswith(prefix)), "")


def column_hint(name: str) -> str:
    """The same for a column that is asked for."""
    hint = READ_COLUMNS.get(name.lower(), "")
    return hint and hint + ALL_COLUMNS


def translated(options: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(name as given, name here, value) of every option; the names differ with `schema` = kafka alone."""
    is_kafka = any(name.lower() == "schema" and value.strip().lower() == "kafka" for name, value in options.items())
    for name, value in options.items():
        yield name, TAKEN.get(name.lower(), name) if is_kafka else name, value


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
"""Other names of columns, accepted in `columns` and in a schema; they are not among "all columns"."""
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
