"""The connector's options: one declared table, parsed once per reader or writer.

Invariant: every option that is accepted is a field here with its text, so the page docs/spark-options.md is generated
from this table; every other name is an error that names the nearest known one. Option names are the field names in
camelCase and are compared without case, because Spark hands them over in lower case. Pure.

The options of `decode`: what bodies are, which columns they become, and what is done with one that is not that.

Invariant: combinations that cannot work are refused before any broker is asked. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remoting.protocol.records.record import BATCH_COUNT_MAX
from spark_connector.errors import OptionError
from spark_connector.options import option_table
from spark_connector.options.option_table import ConnectionOptions, QueueName, declared, option, option_name, spellings
from spark_connector.options.schema import nearest, option_hint, translated

PERMISSIVE, FAILFAST = "permissive", "failfast"
FORMATS = ("json", "avro", "protobuf", "sparkplug")


def check_decoding(options: ReadOptions) -> None:
    """Raise OptionError for options of decoding that do not go together."""
    kind = options.decode
    given = [
        name
        for name, default in (
            ("decode_schema", None),
            ("message_type", None),
            ("decode_column", None),
            ("infer_schema", False),
            ("schema_location", None),
            ("timestamp_unit", None),
            ("timestamp_format", None),
        )
        if getattr(options, name) != default
    ]
    if kind is None:
        if given:
            raise OptionError(f"option {option_name(given[0])!r} needs the option 'decode': {', '.join(FORMATS)}")
        return
    for name, kinds in (
        ("message_type", ("protobuf",)),
        ("infer_schema", ("json",)),
        ("schema_location", ("json",)),
        ("timestamp_unit", ("json",)),
        ("timestamp_format", ("json",)),
        ("decode_schema", ("json", "avro", "protobuf")),
    ):
        if name in given and kind not in kinds:
            raise OptionError(f"option {option_name(name)!r} is for 'decode' = {' and '.join(kinds)}, not {kind}")
    if options.infer_schema and options.decode_schema is not None:
        raise OptionError("set one of the options 'decodeSchema' and 'inferSchema', not both")
    if options.schema_location is not None and not options.infer_schema:
        raise OptionError("option 'schemaLocation' keeps what 'inferSchema' = true finds: set that too")
    if kind in {"avro", "protobuf"} and options.decode_schema is None:
        raise OptionError(f"option 'decode' = {kind} needs the option 'decodeSchema'")
    if kind == "protobuf" and options.message_type is None:
        raise OptionError("option 'decode' = protobuf needs the option 'messageType', the full name of a message")


SPARK_OWN = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark leaves in the dictionary though they are its own."""

SCHEMA_TEXT = (
    "`kafka` gives the columns of Kafka's source (`key`, `value`, `topic`, `partition`, `offset`, `timestamp`, "
    "`timestampType`), shows offsets in its JSON and takes those options of Kafka's that have another name here; see "
    "[from Kafka's source](howto/spark-from-kafka.md)."
)
SINK_SCHEMA_TEXT = (
    "`kafka` takes rows as Kafka's sink does (columns `key`, `value`, `topic`, `partition`, `headers`) and those "
    "options of Kafka's that have another name here; see [from Kafka's source](howto/spark-from-kafka.md)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(ConnectionOptions):
    """What to read, how much at once, and how bodies become columns."""

    decode: str | None = option(
        option_table.one_of(*FORMATS),
        None,
        "What bodies are: `json`, `avro`, `protobuf` or `sparkplug` (Sparkplug B). Their fields become typed columns "
        "beside the message columns, and `_corrupt` says of a body that is something else why. See "
        "[howto/decode.md](howto/decode.md).",
    )
    decode_schema: str | None = option(
        option_table.schema_or_path,
        None,
        "What the fields are. `json`: Spark SQL columns (`celsius double, at timestamp`). `avro`: the schema's JSON, "
        "or the path of a file with it. `protobuf`: the path of a descriptor set (`protoc --include_imports "
        "--descriptor_set_out`).",
    )
    message_type: str | None = option(
        str, None, "With `protobuf`: full name of the message that a body is (`plant.v1.Reading`)."
    )
    decode_column: str | None = option(
        option_table.column_name,
        None,
        "Put all fields into one struct column of this name instead of a column each; needed where a field has the "
        "name of a message column.",
    )
    decode_mode: str = option(
        option_table.one_of(PERMISSIVE, FAILFAST),
        PERMISSIVE,
        "`permissive`: a body that does not fit keeps its row, with nulls and the reason in `_corrupt`. `failfast`: it "
        "fails the query, naming queue and offset.",
        aliases=("mode",),
    )
    timestamp_unit: str | None = option(
        option_table.one_of(*option_table.UNITS),
        None,
        "With `json`: what a number in a timestamp column counts since 1970: `s`, `ms`, `us` or `ns`. Default: "
        "seconds, as Spark's `from_json` has it.",
    )
    timestamp_format: str | None = option(
        option_table.moment_text,
        None,
        "With `json`: the form of texts in timestamp columns, in the letters yyyy, MM, dd, HH, mm, ss, S (fraction of "
        "a second), X (zone), with other letters between quotes: `dd.MM.yyyy HH:mm:ss`. Without a zone it is UTC. "
        "Default: ISO 8601.",
    )
    infer_schema: bool = option(
        option_table.flag,
        False,
        "With `json`: find out the fields from the newest messages when the query is planned. A stream also needs "
        "`schemaLocation`.",
        aliases=("includeSchema",),
    )
    infer_schema_rows: int = option(
        option_table.positive, 1_000, "How many of the newest messages `inferSchema` looks at."
    )
    schema_location: str | None = option(
        option_table.local_path,
        None,
        "File on a disk of the driver where `inferSchema` keeps what it found: written once, read by every later "
        "start, so that a query always has the same columns. Delete it to infer them again. Its folder must be there; "
        "URLs of Hadoop's file systems are refused.",
    )
    topic: tuple[str, ...] = option(
        option_table.names,
        (),
        "RocketMQ topics to read, separated by commas. Give this, `topicPattern`, `assign` or `mqttFilter`.",
        aliases=("subscribe", "topics"),
    )
    assign: frozenset[QueueName] = option(
        option_table.assignment,
        frozenset(),
        "Just these queues of RocketMQ topics, as JSON `{topic: [queue, ...]}` or `{topic: {broker: [queue, ...]}}`.",
    )
    topic_pattern: re.Pattern[str] | None = option(  # noqa: RUF009 - declares a field
        option_table.pattern,
        None,
        "Regular expression; every topic whose whole name matches is read, also those that appear later. System, retry "
        "and `$` topics are not among them.",
        aliases=("subscribePattern",),
    )
    mqtt_filter: tuple[str, ...] = option(
        option_table.names,
        (),
        "MQTT topics or filters to read (`plant/+/temp`, `plant/#`), separated by commas; as a JSON list "
        '(`["a,b/#", "c"]`) where a filter itself contains a comma. A topic without wildcards reads just its own '
        "light queue; a filter reads the queues of the topics it covers and keeps the rows that match.",
        aliases=("mqttTopic",),
    )
    starting_offsets: option_table.StartingPoint | None = option(  # noqa: RUF009 - declares a field
        option_table.starting_point,
        None,
        "Where a new query or a batch begins: `earliest`, `latest`, or JSON `{topic: {broker: {queue: offset}}}` (the "
        "broker level may be left out; -2 is earliest, -1 latest; queues not named begin at the earliest). Default: "
        "`latest` for a stream, `earliest` for a batch. A stream with a checkpoint resumes there.",
    )
    ending_offsets: option_table.StartingPoint | None = option(  # noqa: RUF009 - declares a field
        option_table.starting_point,
        None,
        "Where a batch ends (exclusive), same forms; queues not named end at the latest. Default `latest`. Batch only.",
    )
    starting_offsets_by_timestamp: option_table.TimePoint | None = option(  # noqa: RUF009 - declares a field
        option_table.time_point,
        None,
        "Begin at the first message stored at or after a time (ms since 1970): JSON `{topic: {queue: ms}}`, with a "
        "broker level or `{topic: ms}`, or one number for all. Queues not named begin where `startingOffsets` says. "
        "Wins over `startingOffsets`.",
    )
    starting_timestamp: int | None = option(
        option_table.count, None, "The same for every queue, as one number. Wins over both."
    )
    ending_offsets_by_timestamp: option_table.TimePoint | None = option(  # noqa: RUF009 - declares a field
        option_table.time_point,
        None,
        "End before the first message stored at or after a time, same forms; queues not named end where "
        "`endingOffsets` says. Batch only.",
    )
    ending_timestamp: int | None = option(
        option_table.count, None, "The same for every queue, as one number. Wins over both. Batch only."
    )
    starting_offsets_by_timestamp_strategy: str = option(
        option_table.one_of("latest", "error"),
        "error",
        "What happens where a queue has messages but none at or after its starting time: `error` refuses the query, "
        "`latest` begins at its end.",
    )
    tag: tuple[str, ...] = option(
        option_table.tag_expression,
        (),
        "Only messages with one of these tags (`a || b`); judged by the broker, the others never leave it.",
        aliases=("subExpression", "tags"),
    )
    sql: str = option(
        option_table.sql_expression,
        "",
        "Only messages whose properties make this SQL92 expression of RocketMQ true (`speed > 9 AND line IN ('a', "
        "'b')`); judged by the broker. `TAGS` and `KEYS` are among the properties.",
        aliases=("sqlExpression",),
    )
    max_offsets_per_trigger: int | None = option(
        option_table.positive,
        None,
        "At most about this many messages per micro-batch, shared over the queues by what they have waiting, at least "
        "one each. `Trigger.Once` ignores it, `availableNow` makes several batches of it.",
    )
    min_offsets_per_trigger: int | None = option(
        option_table.positive,
        None,
        "Wait until this many messages are there before a micro-batch is made, at most `maxTriggerDelayMs`. The first "
        "batch after a start, `Trigger.Once` and `availableNow` do not wait.",
    )
    max_trigger_delay_ms: int = option(
        option_table.duration_ms,
        900_000,
        "Longest wait for `minOffsetsPerTrigger` since the last batch; as a number of ms or `500ms`, `30s`, `15m`.",
        aliases=("maxTriggerDelay",),
    )
    max_bytes_per_trigger: int | None = option(
        option_table.positive,
        None,
        "At most about this many stored bytes per micro-batch, judged by the mean size of a sample of what waits.",
    )
    min_partitions: int | None = option(
        option_table.partition_count,
        None,
        "Cut a batch into at least this many tasks (if it has as many rows). By default one task per 20,000 rows, at "
        "most as many as the driver has cores; on a cluster set it to the cluster's cores.",
    )
    max_records_per_partition: int | None = option(
        option_table.positive, None, "Split so that no task reads more rows."
    )
    replay_speed: float | None = option(
        option_table.speed,
        None,
        "Read history this many times as fast as it was stored, all queues in step, then live; a new or restarted "
        "stream begins at the oldest message it has not read. Default: as fast as it goes. `availableNow` ignores it.",
    )
    fail_on_data_loss: bool = option(
        option_table.flag,
        True,
        "Fail when offsets to be read were deleted (retention) or lie beyond the log (a truncated one), and when a "
        "topic was deleted and made again or the log is another one. With `false` what is left is read, a topic or log "
        "that is another one from its beginning, and a warning is logged.",
    )
    include_properties: bool = option(
        option_table.flag,
        True,
        "Whether `properties`, the map of all message properties, is among the columns; it costs more than any other.",
    )
    include_headers: bool = option(
        option_table.flag,
        False,
        "Whether `headers`, all message properties as Kafka's source gives headers (an array of key and binary value, "
        "repeated keys included), is among the columns.",
    )
    schema: str = option(option_table.one_of("rocketmq", "kafka"), "rocketmq", SCHEMA_TEXT)
    columns: tuple[str, ...] = option(
        option_table.names,
        (),
        "Columns to decode, separated by commas; default all. The others cost nothing. `.schema(...)` does the same.",
    )
    consumer_group: str | None = option(
        option_table.group_name,
        None,
        "Report progress to the broker under this group, so that its lag shows in every RocketMQ tool. One batch "
        "behind; the checkpoint alone decides where a query resumes.",
        aliases=("group", "groupId"),
    )
    read_from: str = option(
        option_table.one_of("master", "replica", "nearest"),
        "master",
        "Which broker of a group the tasks read from: its `master`; a `replica`, so that reads cost the master next to "
        "nothing; or the `nearest`, which is the one on the task's own machine, else the one that takes a connection "
        "fastest. What a batch has is always decided at the master. See "
        "[howto/spark.md](howto/spark.md#read-from-replicas).",
    )
    long_poll_ms: int = option(
        option_table.count,
        200,
        "How long the broker may hold the driver's request for new messages. More means less idle work, and never "
        "more latency if a query has one source and the source one broker; there the time is extended while "
        "nothing arrives. Several brokers are polled in turn, so set it lower for them.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(ConnectionOptions):
    """Where rows go and with which promise."""

    topic: str | None = option(str, None, "RocketMQ topic of every row; wins over a column `topic`.")
    mqtt_topic: str | None = option(
        str,
        None,
        "MQTT topic of every row; wins over a column `mqttTopic`. A row with an MQTT topic is an MQTT publish.",
    )
    delivery: str = option(
        option_table.one_of("exactly-once", "at-least-once"),
        "exactly-once",
        "`exactly-once` stages rows invisibly and shows them with one commit per batch that is safe to repeat; "
        "`at-least-once` sends straight away (lowest latency, a retried task repeats rows).",
    )
    sink_id: str | None = option(
        option_table.sink_name,
        None,
        "Name under which the broker remembers the last committed batch of a stream; default the query's id, which the "
        "checkpoint keeps. One name belongs to one checkpoint: a query that starts over under it fails, because its "
        "batches begin at 0 again.",
    )
    replay_mismatch: str = option(
        option_table.one_of("fail", "skip"),
        "fail",
        "What happens where a batch number that was committed comes again with other rows (the checkpoint was "
        "restored, replaced or copied): `fail` refuses the batch, `skip` leaves its rows out as if they were the "
        "committed ones, for queries that do not give the same rows when a batch is repeated.",
    )
    txn_app_id: str | None = option(
        option_table.sink_name,
        None,
        "For batch writes and `foreachBatch`: with `txnVersion` makes the write idempotent; the last committed version "
        "of this id is skipped if it has the same rows again, see `replayMismatch`. One id belongs to one query and "
        "checkpoint.",
    )
    txn_version: int | None = option(option_table.count, None, "See `txnAppId`; in `foreachBatch` the batch id.")
    batch_codec: str | None = option(
        option_table.one_of("none", "lz4", "zstd"),
        None,
        "Write whole batches of rows as one record each into the batch topic `topic`, compressed as a whole: `lz4` "
        "(fast), `zstd` (small) or `none`. Such rows are read several times faster. Default: one record per row.",
    )
    batch_rows: int = option(
        option_table.positive,
        4_096,
        "Rows of one record with `batchCodec`, at most 65,536; a record also ends at 2 MiB of rows.",
    )
    schema: str = option(option_table.one_of("rocketmq", "kafka"), "rocketmq", SINK_SCHEMA_TEXT)
    include_headers: bool = option(
        option_table.flag, True, "Whether a column `headers` is written; with `false` it is left out."
    )
    qos: int = option(option_table.quality, 1, "MQTT quality of service of rows without a column `qos`.")
    retain: bool = option(option_table.flag, False, "MQTT retain flag of rows without a column `retain`.")
    delay_ms: int = option(
        option_table.duration_ms,
        0,
        "Deliver rows without a column `delay` only so long after their commit; as a number of ms or `500ms`, `30s`, "
        "`15m`. The broker keeps the time, at most its `delay_s_max`.",
        aliases=("delay",),
    )
    content_type: str | None = option(
        option_table.one_line, None, "MQTT 5 content type of every row when there is no column `contentType`."
    )


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Read the options of `spark.read` or `spark.readStream`; raises OptionError naming the option."""
    given = _parse(ReadOptions, options)
    parsed = ReadOptions(**given)
    _check_idle(given, READ_NEEDS)
    check_source(parsed)
    _check_connection(parsed)
    return parsed


def check_source(parsed: ReadOptions) -> None:
    """Raise OptionError for options of reading that contradict each other."""
    choices = (
        ("topic", parsed.topic),
        ("topicPattern", parsed.topic_pattern),
        ("assign", parsed.assign),
        ("mqttFilter", parsed.mqtt_filter),
    )
    given = [name for name, value in choices if value]
    if len(given) != 1:
        found = f"{' and '.join(given)} are set" if given else "none is set"
        raise OptionError(
            "set one of the options 'topic' (RocketMQ topics), 'topicPattern' (a regular expression of them), 'assign' "
            f"(some of their queues) and 'mqttFilter' (MQTT filters): {found}"
        )
    check_decoding(parsed)
    if parsed.include_headers and parsed.decode is not None:
        raise OptionError("option 'includeHeaders' is not for 'decode': the column 'properties' has them as text")
    if parsed.schema == "kafka" and parsed.decode is not None:
        raise OptionError("option 'schema' = kafka: Kafka's columns have no decoded bodies, leave 'decode' out")
    least, most = parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(f"option 'minOffsetsPerTrigger' = {least} is above 'maxOffsetsPerTrigger' = {most}")
    if not parsed.include_properties and any(name.lower() == "properties" for name in parsed.columns):
        raise OptionError("option 'columns' names 'properties', which 'includeProperties' = false leaves out")


READ_NEEDS = {
    "decode_mode": ("decode",),
    "infer_schema_rows": ("infer_schema",),
    "starting_offsets_by_timestamp_strategy": ("starting_offsets_by_timestamp", "starting_timestamp"),
    "max_trigger_delay_ms": ("min_offsets_per_trigger",),
}
WRITE_NEEDS = {"batch_rows": ("batch_codec",)}
"""Option → those of which it needs one, to have an effect."""
FOR_MQTT = ("qos", "retain")
REMEMBERING = ("sink_id", "replay_mismatch")
"""Options of writes that the broker remembers."""


def _given_of(given: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [name for name in names if name in given]


def _check_idle(given: Mapping[str, Any], needs: Mapping[str, tuple[str, ...]]) -> None:
    """Raise OptionError for an option that is given without what it belongs to."""
    for name, others in needs.items():
        present = [other for other in others if given.get(other) is not None and given[other] is not False]
        if name in given and not present:
            wanted = " or ".join(repr(option_name(other)) for other in others)
            raise OptionError(f"option {option_name(name)!r} does nothing without the option {wanted}")


def _check_connection(parsed: ConnectionOptions) -> None:
    if (parsed.access_key is None) != (parsed.secret_key is None):
        raise OptionError("the options 'accessKey' and 'secretKey' belong together: set both or neither")
    idle = [
        name
        for name, item in declared(ConnectionOptions)
        if item.name.startswith("tls_") and getattr(parsed, item.name)
    ]
    if idle and not parsed.tls:
        raise OptionError(f"option {idle[0]!r} does nothing without the option 'tls' = true")
    if parsed.tls_key_file is not None and parsed.tls_certificate_file is None:
        raise OptionError("option 'tlsKeyFile' needs the option 'tlsCertificateFile'")


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Read the options of `df.write` or `df.writeStream`; raises OptionError naming the option."""
    given = _parse(WriteOptions, options)
    parsed = WriteOptions(**given)
    _check_idle(given, WRITE_NEEDS)
    if parsed.topic is not None and (idle := _given_of(given, FOR_MQTT)):
        raise OptionError(f"option {idle[0]!r} is for MQTT topics: it does nothing with the option 'topic'")
    if parsed.delivery == "at-least-once" and (idle := _given_of(given, REMEMBERING)):
        raise OptionError(f"option {option_name(idle[0])!r} does nothing with the option 'delivery' = at-least-once")
    if (parsed.txn_app_id is None) != (parsed.txn_version is None):
        raise OptionError("the options 'txnAppId' and 'txnVersion' belong together: set both or neither")
    if parsed.topic is not None and parsed.mqtt_topic is not None:
        raise OptionError("set one of the options 'topic' (RocketMQ) and 'mqttTopic' (MQTT), not both")
    if parsed.batch_codec is not None and parsed.topic is None:
        raise OptionError("option 'batchCodec' needs the option 'topic': a batch topic, of which a record holds one")
    if parsed.batch_codec is not None and parsed.delay_ms:
        raise OptionError("option 'delayMs' is not for batch topics: a record of many rows does not wait")
    if parsed.batch_rows > BATCH_COUNT_MAX:
        raise OptionError(f"option 'batchRows' = {parsed.batch_rows}: a record holds at most {BATCH_COUNT_MAX} rows")
    _check_connection(parsed)
    return parsed


def _parse(table: type[ConnectionOptions], options: Mapping[str, str]) -> dict[str, Any]:
    """Match names without case, refuse unknown and doubled ones, parse the values."""
    known = spellings(table)
    parsed: dict[str, Any] = {}
    names: dict[str, str] = {}
    for given, name, text in translated(options):
        if name.lower() in SPARK_OWN:
            continue
        if name.lower() not in known:
            raise OptionError(_unknown(name, table))
        item = known[name.lower()]
        if item.name in parsed:
            before = names[item.name]
            raise OptionError(f"option {option_name(item.name)!r} is given twice, as {before!r} and as {given!r}")
        names[item.name] = given
        try:
            parsed[item.name] = item.metadata["parse"](text)
        except ValueError as failure:
            raise OptionError(f"option {option_name(item.name)!r} = {text!r}: {failure}") from None
    return parsed


def _unknown(given: str, table: type[ConnectionOptions]) -> str:
    """Sentence for an option this side does not have."""
    other = WriteOptions if table is ReadOptions else ReadOptions
    hint = option_hint(given)
    if hint:
        return f"{given!r} is an option of Kafka's: {hint}."
    for name, _ in declared(other):
        if name.lower() == given.lower():
            return f"option {name!r} is only for {'writing' if other is WriteOptions else 'reading'}"
    names = [spelling for name, item in declared(table) for spelling in (name, *item.metadata["aliases"])]
    return f"unknown option {given!r}{nearest(given, names) or '.'} Options are listed in docs/spark-options.md."
