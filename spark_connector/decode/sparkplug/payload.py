"""The Sparkplug B payload as a Protobuf message, declared here from the specification (Sparkplug 3.0, section 6.4).

    name: (number, kind[, "repeated"])     kinds in small letters are scalars, the others messages of this table

Built with protobuf's own runtime, so nothing is generated. Extension ranges are left out: what is in them is unknown
fields, which Protobuf keeps out of the way. Invariant: numbers and kinds are the specification's. Pure.

The columns of Sparkplug B: one row per message, its metrics in an array, each with its value in a typed member.

Invariant: the order of members is the order in which `sparkplug_bodies` makes them. Pure.

Where birth certificates come from: the light queues of their topics, read by the task that needs them.

A message by alias may stand in another queue, another task and another batch than the birth that explains it, so the
task asks the log. First contact with a topic costs a QUEUE_BOUNDS (sent many at a time); from its last certificate on,
or from the one that was in force when an old message was stored, a MULTI_PULL for many topics at once reads what is
new. What was read is remembered by the worker process: a running stream pays one request per pull of rows, whatever
the number of nodes. A message whose broker will not let us read its birth keeps its alias and has a reason.

Invariant: when `prepare` returns, every certificate at or below the positions named is known. Thread rule: one task.

Birth certificates: which names and data types stand behind the aliases of a node's or device's messages.

A certificate is in force for what was stored behind it and before the next one of its topic; "behind" is by position in
the broker's log, the one order that all queues of a broker share. So the answer for a message never changes, whichever
task or batch asks. Invariant: certificates of a topic rise in position and none is missing between the first and
`known_to`. Pure.
"""

from __future__ import annotations

import bisect
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from pyspark.sql.types import StructType

from remoting.protocol.bodies.pull_body import (
    STATUS_NO_SUCH_QUEUE,
    STATUS_OK,
    LightBounds,
    PulledQueue,
    QueueBoundsRequest,
    decode_bounds_reply,
    decode_multi_pull_reply,
    encode_bounds_request,
    encode_multi_pull,
)
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import record
from spark_connector.brokers import Address, GroupMaster
from spark_connector.decode.ddl import parse_columns
from spark_connector.errors import BrokenRecord, BrokerRefused, need
from spark_connector.options.read_write import ReadOptions

PACKAGE = "lightmq.sparkplug"
SCALARS = {"double": 1, "float": 2, "uint64": 4, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}
"""Scalar kinds as Protobuf numbers them."""
VALUES = (("int_value", "uint32"), ("long_value", "uint64"), ("float_value", "float"), ("double_value", "double"),
          ("boolean_value", "bool"), ("string_value", "string"))  # fmt: skip
"""What every `oneof value` begins with."""
MESSAGES: dict[str, tuple[int, tuple[tuple[str, str], ...], dict[str, tuple[Any, ...]]]] = {
    # name: (number of the first member of `oneof value`, members after the common ones, other fields)
    "Payload": (0, (), {
        "timestamp": (1, "uint64"), "metrics": (2, "Metric", "repeated"), "seq": (3, "uint64"), "uuid": (4, "string"),
        "body": (5, "bytes"),
    }),
    "Metric": (10, (("bytes_value", "bytes"), ("dataset_value", "DataSet"), ("template_value", "Template")), {
        "name": (1, "string"), "alias": (2, "uint64"), "timestamp": (3, "uint64"), "datatype": (4, "uint32"),
        "is_historical": (5, "bool"), "is_transient": (6, "bool"), "is_null": (7, "bool"), "metadata": (8, "MetaData"),
        "properties": (9, "PropertySet"),
    }),
    "MetaData": (0, (), {
        "is_multi_part": (1, "bool"), "content_type": (2, "string"), "size": (3, "uint64"), "seq": (4, "uint64"),
        "file_name": (5, "string"), "file_type": (6, "string"), "md5": (7, "string"), "description": (8, "string"),
    }),
    "PropertySet": (0, (), {"keys": (1, "string", "repeated"), "values": (2, "PropertyValue", "repeated")}),
    "PropertySetList": (0, (), {"propertyset": (1, "PropertySet", "repeated")}),
    "PropertyValue": (3, (("propertyset_value", "PropertySet"), ("propertysets_value", "PropertySetList")), {
        "type": (1, "uint32"), "is_null": (2, "bool"),
    }),
    "DataSet": (0, (), {
        "num_of_columns": (1, "uint64"), "columns": (2, "string", "repeated"), "types": (3, "uint32", "repeated"),
        "rows": (4, "Row", "repeated"),
    }),
    "Row": (0, (), {"elements": (1, "DataSetValue", "repeated")}),
    "DataSetValue": (1, (), {}),
    "Template": (0, (), {
        "version": (1, "string"), "metrics": (2, "Metric", "repeated"), "parameters": (3, "Parameter", "repeated"),
        "template_ref": (4, "string"), "is_definition": (5, "bool"),
    }),
    "Parameter": (3, (), {"name": (1, "string"), "type": (2, "uint32")}),
}  # fmt: skip
DATATYPES = (
    "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean",
    "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList",
    "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array",
    "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray",
)  # fmt: skip
"""Names of the data types by their number (section 6.4.16)."""


@lru_cache(maxsize=1)
def payload_class() -> Any:
    """The class of a payload; OptionError names the extra where protobuf is missing."""
    descriptors = need("google.protobuf.descriptor_pb2", "sparkplug")
    pool = need("google.protobuf.descriptor_pool", "sparkplug").DescriptorPool()
    file = descriptors.FileDescriptorProto(name="lightmq_sparkplug.proto", package=PACKAGE, syntax="proto2")
    for name, (first, more, fields) in MESSAGES.items():
        message = file.message_type.add(name=name)
        for member, (number, kind, *repeated) in fields.items():
            _add(message, member, number, kind, label=3 if repeated else 1)
        if first:
            message.oneof_decl.add(name="value")
            for number, (field, kind) in enumerate((*VALUES, *more), first):
                _add(message, field, number, kind).oneof_index = 0
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{PACKAGE}.Payload")
    return need("google.protobuf.message_factory", "sparkplug").GetMessageClass(found)


def _add(message: Any, name: str, number: int, kind: str, *, label: int = 1) -> Any:
    field = message.field.add(name=name, number=number, label=label)
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type, field.type_name = 11, f".{PACKAGE}.{kind}"
    return field


def datatype_name(number: int) -> str | None:
    """Name of a data type, None for a number that has none."""
    return DATATYPES[number] if 0 <= number < len(DATATYPES) else None


METRIC = (
    "struct<name:string,alias:bigint,timestamp:timestamp,datatype:string,isHistorical:boolean,isTransient:boolean,"
    "isNull:boolean,long:bigint,double:double,boolean:boolean,text:string,bytes:binary,time:timestamp,"
    "properties:map<string,string>,metadata:string>"
)
COLUMNS = (
    "groupId string, messageType string, edgeNodeId string, deviceId string, hostId string, online boolean, "
    f"payloadTimestamp timestamp, seq int, bdSeq int, payloadUuid string, payloadBody binary, metrics array<{METRIC}>, "
    "logPosition bigint"
)


def plan_sparkplug() -> tuple[StructType, None]:
    """Return the columns; OptionError where protobuf is missing."""
    payload_class()
    return parse_columns(COLUMNS), None


KEPT_PER_TOPIC_MAX = 64
"""Certificates of one topic that are remembered; older ones are read again where an old message needs them."""


@dataclass(slots=True)
class Certificate:
    """The contents of one birth certificate."""

    position: int
    aliases: dict[int, tuple[str, int]]
    """Alias → name and data type."""
    datatypes: dict[str, int]
    """Name → data type."""
    broken: str = ""
    """Why it cannot be read; empty when it was."""


def read_certificate(position: int, body: bytes) -> Certificate:
    """Return the contents of a birth's payload."""
    made = Certificate(position, {}, {})
    try:
        payload = payload_class().FromString(body)
        for metric in payload.metrics:
            name = sys.intern(metric.name)
            if metric.HasField("alias"):
                made.aliases[metric.alias] = (name, metric.datatype)
            made.datatypes[name] = metric.datatype
    except Exception as failure:  # noqa: BLE001 - how the library refuses bytes differs between its versions
        return Certificate(position, {}, {}, f"the birth certificate cannot be read: {failure}")
    return made


@dataclass(slots=True)
class TopicBirths:
    """The certificates of one topic that are known."""

    queue_id: int | None = None
    next_offset: int = 0
    """First offset of the topic's queue that was not read."""
    whole: bool = True
    """Whether there was nothing before the first certificate."""
    known_to: int = -1
    """Position up to which every certificate is known."""
    refused: str = ""
    """Why the broker does not let us read them; empty when it does."""
    certificates: list[Certificate] = field(default_factory=list)

    def add(self, certificate: Certificate, low: int) -> None:
        """Append the next one; of too many the oldest is forgotten, if no message from `low` on needs it."""
        self.certificates.append(certificate)
        while len(self.certificates) > KEPT_PER_TOPIC_MAX and self.certificates[1].position < low:
            del self.certificates[0]
            self.whole = False

    def covers(self, low: int) -> bool:
        """Whether the one in force for a message at this position is known, or known not to exist."""
        return self.whole or bool(self.certificates and self.certificates[0].position < low)

    def at(self, position: int) -> Certificate | None:
        """The one in force for a message at this position; None where there was none."""
        if self.refused:
            return Certificate(-1, {}, {}, self.refused)
        place = bisect.bisect_left(self.certificates, position, key=_position)
        return self.certificates[place - 1] if place else None

    @property
    def size(self) -> int:
        """Metrics remembered."""
        return sum(len(one.datatypes) for one in self.certificates)


def _position(certificate: Any) -> int:
    found: int = certificate.position
    return found


ASKED_AT_ONCE_MAX = 256
"""Questions sent before the first answer is waited for."""
TOPICS_PER_PULL_MAX = 1_000
CERTIFICATES_PER_PULL_MAX = 64
CERTIFICATE_BYTES_MAX = 1024 * 1024
METRICS_REMEMBERED_MAX = 1_000_000
"""Metrics of all certificates that a worker process remembers; beyond it the cache is emptied."""


@dataclass(slots=True)
class Need:
    """The stretch of a log in which messages want the certificates of a topic."""

    low: int
    high: int
    low_store_ms: int

    def widen(self, position: int, store_ms: int) -> None:
        """Take another message in."""
        if position < self.low:
            self.low, self.low_store_ms = position, min(store_ms, self.low_store_ms)
        self.high = max(self.high, position)


Item = TypeVar("Item")
Memory = dict[str, TopicBirths]
_MEMORIES: dict[tuple[Address, str, str | None], Memory] = {}
"""By broker and access key, because not every key may read everything."""


class Births:
    """The birth certificates of the brokers of one task."""

    def __init__(self, options: ReadOptions, masters: Mapping[str, GroupMaster]) -> None:
        self._options = options
        self._masters = masters

    def prepare(self, broker: str, needs: Mapping[str, Need]) -> None:
        """Learn the certificates of some topics; BrokerUnreachable where the broker does not answer."""
        memory = self._memory(broker)
        if sum(one.size for one in memory.values()) > METRICS_REMEMBERED_MAX:
            memory.clear()
        unknown = {topic: need for topic, need in needs.items() if not _is_known(memory.get(topic), need)}
        self._open(broker, memory, {t: need for t, need in unknown.items() if _is_unopened(memory.get(t), need)})
        self._read(broker, memory, unknown)
        # The newest certificate is nearly always the one; messages of long ago want one that time leads to.
        older = {topic: need for topic, need in unknown.items() if not memory[topic].covers(need.low)}
        self._open(broker, memory, older, by_time=True)
        self._read(broker, memory, older)
        hidden = {topic: need for topic, need in older.items() if not memory[topic].covers(need.low)}
        for topic in hidden:
            # Where clocks went back, times do not show where to begin.
            memory[topic] = TopicBirths(memory[topic].queue_id)
        self._read(broker, memory, hidden)

    def at(self, broker: str, topic: str, position: int) -> Certificate | None:
        """The certificate of a topic that is in force for a message; None where there was none."""
        known = self._memory(broker).get(topic)
        return None if known is None else known.at(position)

    def _memory(self, broker: str) -> Memory:
        return _MEMORIES.setdefault((self._masters[broker].address, broker, self._options.access_key), {})

    def _open(self, broker: str, memory: Memory, needs: Mapping[str, Need], *, by_time: bool = False) -> None:
        """Find the queues of topics and where in them to begin: at the last certificate, or at one before the needs."""
        master = self._masters[broker]
        for some in _batched(needs.items(), ASKED_AT_ONCE_MAX):
            asked = [
                QueueBoundsRequest(filter=topic, at_ms=max(0, need.low_store_ms) if by_time else None)
                for topic, need in some
            ]
            commands = [Command(RequestCode.QUEUE_BOUNDS, body=encode_bounds_request(one)) for one in asked]
            for (topic, _), reply in zip(some, master.ask_all(commands), strict=True):
                try:
                    memory[topic] = _opened(decode_bounds_reply(master.check(reply).body).light)
                except BrokerRefused as refusal:
                    memory[topic] = TopicBirths(refused=f"the birth certificate may not be read: {refusal}")

    def _read(self, broker: str, memory: Memory, needs: Mapping[str, Need]) -> None:
        """Read the queues of topics up to the positions needed."""
        topics = [topic for topic in needs if memory[topic].queue_id is not None]
        while topics:
            before = [memory[topic].next_offset for topic in topics]
            left: list[str] = []
            for some in _batched(topics, TOPICS_PER_PULL_MAX):
                for topic, pulled in zip(some, self._pull(broker, [memory[topic] for topic in some]), strict=True):
                    if not _take(memory[topic], pulled, needs[topic]):
                        left.append(topic)
            if left == topics and before == [memory[topic].next_offset for topic in topics]:
                raise BrokenRecord(f"the broker does not go on in the queues of {len(left)} birth certificates")
            topics = left
        for topic, wanted in needs.items():
            memory[topic].known_to = max(memory[topic].known_to, wanted.high)

    def _pull(self, broker: str, known: list[TopicBirths]) -> list[PulledQueue]:
        wants = [
            (one.queue_id or 0, one.next_offset, CERTIFICATES_PER_PULL_MAX, CERTIFICATE_BYTES_MAX) for one in known
        ]
        command = Command(RequestCode.MULTI_PULL, body=encode_multi_pull(wants))
        return decode_multi_pull_reply(self._masters[broker].ask(command).body)


def _is_known(known: TopicBirths | None, need: Need) -> bool:
    return known is not None and known.known_to >= need.high and known.covers(need.low)


def _is_unopened(known: TopicBirths | None, need: Need) -> bool:
    return known is None or known.queue_id is None or not known.covers(need.low)


def _opened(light: LightBounds | None) -> TopicBirths:
    """A topic at its last certificate, or at the one before the first that is as new as the messages."""
    if light is None:
        return TopicBirths()
    begin = max(light.min, (light.max if light.at is None else light.at) - 1)
    return TopicBirths(light.id, begin, whole=begin == light.min)


def _take(known: TopicBirths, pulled: PulledQueue, need: Need) -> bool:
    """Take in what was read of a topic's queue; whether that is enough."""
    if pulled.status == STATUS_NO_SUCH_QUEUE:
        known.queue_id = None
        return True
    if pulled.status != STATUS_OK:
        # Retention took some, or they cannot be read: those that follow are there.
        known.next_offset = max(pulled.first_offset, known.next_offset + 1)
        return known.next_offset >= pulled.max_offset
    at = 0
    for _ in range(pulled.count):
        size = record.check_record(pulled.blob, at, None)
        view = record.RecordView(pulled.blob, at)
        known.add(read_certificate(view.position, bytes(view.body)), need.low)
        at += size
    known.next_offset = pulled.next_offset
    if known.next_offset >= pulled.max_offset:
        return True
    return bool(known.certificates) and known.certificates[-1].position >= need.high


def _batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while some := list(itertools.islice(iterator, size)):
        yield some
