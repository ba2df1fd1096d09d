"""Sparkplug B messages → columns: payloads parsed by protobuf, aliases resolved by the birth certificates in the log.

First all payloads of a batch are parsed and the certificates they need are noted, then those are asked for at once,
then values are made: an alias alone gives neither the name nor whether a number is signed. Invariant: one row per
message; a metric whose birth is missing keeps its alias, and `_corrupt` has the reason. Thread rule: one task.

Sparkplug topics: `spBv1.0/group/type/node[/device]` and `spBv1.0/STATE/host` (Sparkplug 3.0, section 4).

Invariant: a topic is parsed to names that are all there, or to a reason. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from spark_connector.decode.decoded import Decoded, column_of
from spark_connector.decode.sparkplug.metrics import Known, MetricRows, microseconds
from spark_connector.decode.sparkplug.payload import Births, Certificate, Need, payload_class
from spark_connector.errors import Mismatch, shorten
from spark_connector.queues import QueueKey

NAMESPACE = "spBv1.0"
STATE = "STATE"
OF_NODES = frozenset({"NBIRTH", "NDEATH", "NDATA", "NCMD"})
OF_DEVICES = frozenset({"DBIRTH", "DDEATH", "DDATA", "DCMD"})
WITH_ALIASES = frozenset({"NDATA", "DDATA", "NCMD", "DCMD"})
"""Messages whose metrics may be known by an alias and a type that the birth certificate declared."""


@dataclass(frozen=True, slots=True)
class SparkplugTopic:
    """The parts of a Sparkplug topic."""

    message_type: str
    group: str | None = None
    node: str | None = None
    device: str | None = None
    host: str | None = None

    births: tuple[str, ...] = ()
    """Topics of the certificates that declare this message's aliases: the node's, and behind it the device's."""


def parse_topic(topic: str | None) -> SparkplugTopic | str:
    """Return the parts of a topic, or why it is not a topic of Sparkplug."""
    if topic is None:
        return "no MQTT topic, which Sparkplug needs"
    parts = topic.split("/")
    if parts[0] != NAMESPACE:
        return f"the topic does not begin with {NAMESPACE}"
    if len(parts) == 3 and parts[1] == STATE and parts[2]:
        return SparkplugTopic(STATE, host=parts[2])
    if len(parts) < 4 or not all(parts):
        return f"the topic is not {NAMESPACE}/group/type/node[/device]"
    kind = parts[2]
    if kind in OF_NODES and len(parts) == 4:
        return SparkplugTopic(kind, parts[1], parts[3], births=_births(parts))
    if kind in OF_DEVICES and len(parts) == 5:
        return SparkplugTopic(kind, parts[1], parts[3], parts[4], births=_births(parts))
    if kind in OF_NODES or kind in OF_DEVICES:
        return f"{kind} does not belong to a topic of {len(parts)} levels"
    return f"{kind[:24]!r} is no Sparkplug message type"


def _births(parts: list[str]) -> tuple[str, ...]:
    group, node = parts[1], parts[3]
    of_node = f"{NAMESPACE}/{group}/NBIRTH/{node}"
    return (of_node,) if len(parts) == 4 else (of_node, f"{NAMESPACE}/{group}/DBIRTH/{node}/{parts[4]}")


TOPICS_REMEMBERED_MAX = 100_000
"""Distinct topics whose parts are remembered per task; beyond it the cache is emptied."""
WITH_BDSEQ = frozenset({"NBIRTH", "NDEATH"})
BDSEQ = "bdSeq"
SEQUENCE_MAX = 255
NOTHING_KNOWN = Known({}, {}, "")


class SparkplugMessage(NamedTuple):
    """One message being decoded: the parts of its topic, its payload if any, where it stands, and what is wrong."""

    topic: SparkplugTopic | None
    payload: Any
    position: int
    reason: str = ""
    wants_birth: bool = False
    """Whether it has metrics that only a certificate explains."""


class SparkplugDecoder:
    """Reads the messages of one task."""

    def __init__(self, schema: pa.Schema, births: Births) -> None:
        self._schema = schema
        self._births = births
        self._parse = payload_class().FromString
        self._topics: dict[str | None, SparkplugTopic | str] = {}
        self._shows_metrics = "metrics" in schema.names

    def decode(self, bodies: pa.Array, batch: pa.RecordBatch, key: QueueKey) -> Decoded:
        """Return the columns of some messages; `batch` holds their topics, times and positions."""
        messages = list(self._messages(bodies, batch))
        if self._shows_metrics:
            self._births.prepare(key.broker, self._needs(messages, batch))
        reasons: dict[int, str] = {}
        metrics = MetricRows()
        rows: list[dict[str, Any]] = []
        for row, message in enumerate(messages):
            made, reason = self._row(message, metrics, key.broker)
            rows.append(made)
            metrics.end_row(present=message.payload is not None and message.topic is not None)
            if reason:
                reasons[row] = shorten(reason)
        columns = []
        for field in self._schema:
            if field.name == "metrics":
                columns.append(metrics.array(field.type))
            else:
                columns.append(column_of([made.get(field.name) for made in rows], field, reasons))
        return Decoded(columns, reasons)

    def _messages(self, bodies: pa.Array, batch: pa.RecordBatch) -> Iterator[SparkplugMessage]:
        """Parse topics and payloads."""
        if len(self._topics) > TOPICS_REMEMBERED_MAX:
            self._topics.clear()
        names = batch.column("mqttTopic").to_pylist()
        positions = batch.column("_position").to_pylist()
        for body, name, position in zip(bodies.to_pylist(), names, positions, strict=True):
            topic = self._topics.get(name)
            if topic is None:
                topic = self._topics[name] = parse_topic(name)
            if isinstance(topic, str):
                yield SparkplugMessage(None, None, position, topic)
            elif topic.message_type == STATE:
                yield SparkplugMessage(topic, body, position)
            else:
                yield self._parsed(topic, body, position)

    def _parsed(self, topic: SparkplugTopic, body: bytes, position: int) -> SparkplugMessage:
        try:
            payload = self._parse(body)
        except Exception as failure:  # noqa: BLE001 - how the library refuses bytes differs between its versions
            return SparkplugMessage(topic, None, position, f"not a Sparkplug B payload: {failure}")
        if not self._shows_metrics or topic.message_type not in WITH_ALIASES:
            return SparkplugMessage(topic, payload, position)
        wants = any(not (one.name and one.datatype) for one in payload.metrics)
        return SparkplugMessage(topic, payload, position, "", wants)

    def _needs(self, messages: list[SparkplugMessage], batch: pa.RecordBatch) -> dict[str, Need]:
        """Which certificates the metrics without a name or a type want."""
        needs: dict[str, Need] = {}
        times = batch.column("storeTimestamp").cast(pa.int64()).to_pylist()
        for message, stored in zip(messages, times, strict=True):
            if not message.wants_birth or message.topic is None:
                continue
            for topic in message.topic.births:
                known = needs.get(topic)
                if known is None:
                    needs[topic] = Need(message.position, message.position, stored // 1000)
                else:
                    known.widen(message.position, stored // 1000)
        return needs

    def _row(self, message: SparkplugMessage, metrics: MetricRows, broker: str) -> tuple[dict[str, Any], str]:
        """The plain columns of a message and what is wrong with it; its metrics go to `metrics`."""
        topic = message.topic
        made: dict[str, Any] = {"logPosition": message.position}
        if topic is None:
            return made, message.reason
        made["groupId"], made["edgeNodeId"], made["deviceId"] = topic.group, topic.node, topic.device
        made["messageType"], made["hostId"] = topic.message_type, topic.host
        if topic.message_type == STATE:
            return _state(made, message.payload)
        if message.payload is None:
            return made, message.reason
        reason = _heads(made, message.payload)
        if self._shows_metrics:
            known = self._known(topic, message.position, broker) if message.wants_birth else NOTHING_KNOWN
            reason = metrics.add_all(message.payload, known, made.get("payloadTimestamp")) or reason
        if topic.message_type in WITH_BDSEQ:
            made["bdSeq"] = _bdseq(message.payload)
        return made, reason

    def _known(self, topic: SparkplugTopic, position: int, broker: str) -> Known:
        """What the certificates in force declare: the node's for its own messages, the device's for the device's."""
        certificates = [self._births.at(broker, one, position) for one in topic.births]
        own = certificates[-1]
        if own is None:
            whose = "node" if topic.device is None else "device"
            return Known({}, {}, f"no birth certificate of the {whose} is in the log before it")
        if own.broken:
            return Known({}, {}, own.broken)
        node: Certificate | None = certificates[0]
        if node is not None and node.position > own.position:
            return Known({}, {}, "the device was not born again since its node was")
        return Known(own.aliases, own.datatypes, "")


def _heads(made: dict[str, Any], payload: Any) -> str:
    """Fill in what a payload holds beside its metrics; return what is wrong with it."""
    reason = ""
    if payload.HasField("timestamp"):
        try:
            made["payloadTimestamp"] = microseconds(payload.timestamp)
        except Mismatch as mismatch:
            reason = str(mismatch.within("timestamp"))
    if payload.HasField("seq"):
        if payload.seq <= SEQUENCE_MAX:
            made["seq"] = payload.seq
        else:
            reason = f"seq: a number up to {SEQUENCE_MAX} is needed, not {payload.seq}"
    for name, field in (("payloadUuid", "uuid"), ("payloadBody", "body")):
        if payload.HasField(field):
            made[name] = getattr(payload, field)
    return reason


def _bdseq(payload: Any) -> int | None:
    for metric in payload.metrics:
        if metric.name == BDSEQ:
            number: int = metric.long_value or metric.int_value
            return number if number <= SEQUENCE_MAX else None
    return None


class _State(msgspec.Struct):
    online: bool
    timestamp: int | None = None


def _state(made: dict[str, Any], body: bytes) -> tuple[dict[str, Any], str]:
    """A host's state is JSON (section 6.4.26)."""
    try:
        state = msgspec.json.decode(body, type=_State)
        made["online"] = state.online
        if state.timestamp is not None:
            made["payloadTimestamp"] = microseconds(state.timestamp)
    except (msgspec.MsgspecError, Mismatch) as failure:
        return made, f"not the JSON of a host's state: {failure}"
    return made, ""
