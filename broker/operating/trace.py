"""TRACE_MESSAGE (9119): one message from its arrival to everybody it concerns, for operators.

Fields: `id` (a RocketMQ message id or `position` in decimal digits), with `topic` also the unique key that its producer
gave it; or `topic` and `offset`: of an MQTT topic, or with `queue` of a RocketMQ topic.

    {"message": {"id", "position", "topic", "queue", "offset", "bytes", "properties"},
     "steps": [{"time_ms", "where", "what", "detail", "until_ms"}], "searched_until", "complete"}

    where     what                      from
    device    published                 born time, client id or host of the record
    log       stored                    position, store time
    queue     placed                    each queue of its dispatch list, with its offset
    session   passed | waits            each session that subscribes to one of these queues: its offset there
    group     passed | waits            each consumer group with an offset in its queue; of a lite topic, each group
                                        that reads its parent topic
    group     in flight                 the same, of a group that was given it by POP and has not acknowledged it: since
                                        `time_ms`, invisible to the group until `until_ms`
    spark     passed | waits            each query that reports how far it has read that queue
    delayed   delivered                 from a message that waited
    retry     redelivered               each copy in a retry topic, followed by what its group has done with that
    dead letter  given up               the copy in the topic of dead letters
    log       answer, caused by it      later records that name this one: by the correlation data of MQTT 5, or by the
                                        trace id of the property `traceparent`

Later records are searched in the log from the message on, `SEARCHED_MAX` of them at most and `FOUND_MAX` results;
a broker keeps who has a message by POP by group, not by client: the detail names the attempt where clients give one.
`complete` says whether the end of the log was reached. Sessions are looked at in steps. Bodies are never shown.
Invariant: who may see a trace may read the message's topic. Reads only. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from broker.pop.check_points import CheckPoints, Owned, queue_key
from broker.pop.handles import RETRY_SEPARATOR
from broker.pop.ordered import decode_batch
from broker.requests import RequestTools, number, text
from broker.rocketmq.stored_message import position_of_id
from broker.store.index.absence import Absence
from broker.store.keys.key_store import KeyQuestion
from broker.store.state.state_kinds import ORDERED_BATCH
from remoting.access.rights import CONSUME, of_record
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.record import CLIENT_ID_KEY, MESSAGE, RecordView
from remoting.protocol.records.rocketmq_form import RECONSUME_KEY
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.groups import GroupOffsets
    from broker.lite.feature import LiteFeature
    from broker.operating.spark_queries import SparkRequests
    from broker.sessions.sessions import Sessions
    from broker.topics.topics import Topics, VisibleQueues

QUEUES_MAX = 64
"""Queues of the dispatch list that are shown."""
SESSIONS_MAX = 200
"""Sessions shown; the rest are counted."""
SEARCHED_MAX = 50_000
"""Later records looked at."""
FOUND_MAX = 50
STEP = 500
"""Records, or sessions, looked at in one turn of the loop."""
VALUE_CHARACTERS_MAX = 300
TRACE_KEYS = (b"traceparent", b"mqttCorrelationData", b"CORRELATION_ID")
"""Properties by which a later message names the one that caused it."""
ORIGIN_KEYS = (b"ORIGIN_MESSAGE_ID", b"DLQ_ORIGIN_MESSAGE_ID")
_TRACE_PARTS = 4


@dataclass(slots=True)
class Step:
    """One line of a trace."""

    time_ms: int | None
    where: str
    what: str
    detail: str
    until_ms: int | None = None


class TraceRequests:
    """Follows one message."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        visible: VisibleQueues,
        sessions: Sessions,
        offsets: GroupOffsets,
        spark: SparkRequests,
        lite: LiteFeature,
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._visible = visible
        self._sessions = sessions
        self._offsets = offsets
        self._spark = spark
        self._lite = lite
        self._busy = False

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.TRACE_MESSAGE: self.trace_message}

    def trace_message(self, peer: Peer, command: Command) -> None:
        """9119: one message. Refused when there is none to be seen: hidden, or not the peer's to read, is the same."""
        view = self._found(command)
        if view is None or not self._is_shown(peer, command, view):
            absent = Refused(ResponseCode.QUERY_NOT_FOUND, "there is no such message to be seen; it may have expired")
            raise self._tools.authorizer.unseen(peer, command, command.fields.get("topic", ""), absent)
        later(peer, command, self._trace(command, RecordView(bytes(view.raw))))

    def _is_shown(self, peer: Peer, command: Command, view: RecordView) -> bool:
        dispatch = view.dispatch()
        if view.type != MESSAGE & 0xFF or not dispatch or self._visible.hidden(dispatch[0][0]):
            return False
        return self._tools.authorizer.allows(peer, command, CONSUME, of_record(view))

    # -- which message -------------------------------------------------------------------------------------------------

    def _found(self, command: Command) -> RecordView | None:
        fields = command.fields
        if "offset" in fields:
            return self._at_offset(text(fields, "topic"), number(fields, "offset"), number(fields, "queue", -1))
        given = text(fields, "id")
        position = int(given) if given.isascii() and given.isdigit() and len(given) < 19 else position_of_id(given)
        if position is not None:
            return self._at(position)
        keys = self._tools.store.keys
        if keys is None or "topic" not in fields:
            remark = "name the topic too: a message is found by its unique key and topic"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        question = KeyQuestion(
            fields["topic"].encode(),
            given.encode(),
            count_max=1,
            unique_only=True,
            begins_in=lambda queue_id: self._topics.owner(queue_id) is not None,
        )
        found = keys.find(question)
        return RecordView(found.records[0]) if found.records else None

    def _at_offset(self, topic: str, offset: int, index: int) -> RecordView | None:
        store = self._tools.store
        if index >= 0:
            ids = self._topics.queue_ids(topic)
            queue = ids[index] if index < len(ids) else None
        else:
            queue = store.queues.find(names.light_queue_name(topic.encode()))
        if queue is None or self._visible.hidden(queue):
            return None
        record = store.reading.record(queue, offset)
        return None if isinstance(record, Absence) else RecordView(record)

    def _at(self, position: int) -> RecordView | None:
        record = self._tools.store.reading.read_at(position)
        return None if isinstance(record, Absence) else RecordView(record)

    # -- its steps -----------------------------------------------------------------------------------------------------

    async def _trace(self, command: Command, view: RecordView) -> Command:
        if self._busy:
            raise Refused(ResponseCode.SYSTEM_BUSY, "another message is being traced: try again later")
        self._busy = True
        try:
            properties = dict(view.properties())
            queues = self._queues(view)
            steps = [*self._arrival(view, properties), *(_placed(name, offset) for name, offset, _ in queues)]
            steps += await self._readers({queue: (name, offset) for name, offset, queue in queues})
            steps += await self._groups(view)
            steps += self._queries(view)
            later_ones, until, complete = await self._caused(view, properties)
            steps += later_ones
        finally:
            self._busy = False
        shown = {
            "message": self._message(view, properties),
            "steps": steps,
            "searched_until": until,
            "complete": complete,
        }
        return command.reply(body=msgspec.json.encode(shown))

    def _message(self, view: RecordView, properties: dict[bytes, bytes]) -> dict[str, Any]:
        name, offset, _queue = self._queues(view)[0]
        return {
            "id": str(view.position),
            "position": view.position,
            "topic": _topic_of(view),
            "queue": name,
            "offset": offset,
            "bytes": len(view.body),
            "properties": {_text(key): _text(value) for key, value in properties.items()},
        }

    def _queues(self, view: RecordView) -> list[tuple[str, int, int]]:
        """(name for people, offset, id) of the queues that the message lies in and that readers may see."""
        found = []
        for queue, offset in view.dispatch()[:QUEUES_MAX]:
            owner = self._topics.owner(queue)
            if owner is not None:
                found.append((f"{owner[0]} queue {owner[1]}", offset, queue))
            elif not self._visible.hidden(queue):
                found.append((self._visible.title(queue), offset, queue))
        return found

    def _arrival(self, view: RecordView, properties: dict[bytes, bytes]) -> Iterator[Step]:
        client = properties.get(CLIENT_ID_KEY)
        host = properties.get(b"__BORNHOST")
        sender = f"client {_text(client)}" if client else f"host {_text(host)}" if host else "a producer"
        yield Step(
            view.born_ms or None, "device" if client else "producer", "published", f"{sender}: {_topic_of(view)}"
        )
        due = properties.get(b"TIMER_OUT_MS") or properties.get(b"TIMER_DELIVER_MS")
        if due is not None:
            yield Step(view.store_ms, "delayed", "delivered", f"was due at {_text(due)}")
        yield Step(view.store_ms, "log", "stored", f"position {view.position}, {view.total} bytes")

    async def _readers(self, queues: dict[int, tuple[str, int]]) -> list[Step]:
        """The sessions that subscribe to a queue of the message."""
        steps: list[Step] = []
        more = passed = 0
        for count, session in enumerate(list(self._sessions), 1):
            if not count % STEP:
                await asyncio.sleep(0)
            for topic_filter, item in session.subscriptions.items():
                place = queues.get(item.queue_id)
                if place is None:
                    continue
                at = session.offsets.get(item.queue_id, self._visible.end(item.queue_id))
                has_passed = at > place[1]
                if len(steps) < SESSIONS_MAX:
                    state = "connected" if session.owner is not None else "away"
                    detail = f"{session.client_id} ({state}): {topic_filter} at {at}"
                    steps.append(Step(None, "session", "passed" if has_passed else "waits", detail))
                else:
                    more, passed = more + 1, passed + has_passed
        if more:
            detail = f"{more} more sessions, {passed} of which have passed it"
            steps.append(Step(None, "session", "others", detail))
        return steps

    async def _groups(self, view: RecordView) -> list[Step]:
        """The consumer groups that read a lite topic of the message, then those with an offset in its queue."""
        steps = []
        for queue, offset in view.dispatch()[:QUEUES_MAX]:
            found = self._lite.progress(queue, offset)
            steps += [_progress(group, at, offset, owned, group) for group, at, owned in found]
        queue, offset = view.dispatch()[0]
        owner = self._topics.owner(queue)
        if owner is not None:
            for group, places in sorted((await self._offsets.by_group(owner[0])).items()):
                at = places.get(owner)
                if at is not None:
                    steps.append(self._of_group(group, at, queue, offset))
        return steps

    def _of_group(self, group: str, at: int, queue: int, offset: int) -> Step:
        """What a group, which is at this offset of the queue, has done with a message of it."""
        state = self._tools.store.state
        owned, attempt = CheckPoints(state.check_points).find(group, queue, offset), b""
        in_order = state.get(ORDERED_BATCH, queue_key(group, queue))
        if owned is None and in_order is not None:
            batch = decode_batch(in_order[0])
            attempt = batch.attempt
            owned = next((entry[1:3] for entry in batch.entries if entry[0] == offset), None)
        by = f"{group}, attempt {_text(attempt)}" if attempt else group
        return _progress(group, at, offset, owned, by)

    def _queries(self, view: RecordView) -> Iterator[Step]:
        """The Spark queries that report how far they have read the message's queue."""
        queue, offset = view.dispatch()[0]
        owner = self._topics.owner(queue)
        if owner is None:
            return
        place = (owner[0], self._tools.config.broker_name, owner[1])
        for query in self._spark:
            for topic, broker, index, at in query.report.places:
                if (topic, broker, index) == place:
                    what = "passed" if at > offset else "waits"
                    detail = f"{query.report.name}: batch {query.report.batch} read up to {at}"
                    yield Step(query.seen_ms, "spark", what, detail)

    async def _caused(self, view: RecordView, properties: dict[bytes, bytes]) -> tuple[list[Step], int, bool]:
        """(later messages that name this one, position searched up to, whether that is the end of the log)."""
        marks = _marks(properties, view)
        steps: list[Step] = []
        position = view.position + view.total
        confirmed = self._tools.store.confirm_position
        for count in range(SEARCHED_MAX):
            if position >= confirmed or len(steps) >= FOUND_MAX:
                break
            if count % STEP == STEP - 1:
                await asyncio.sleep(0)
            found = self._at(position)
            if found is None:
                return steps, position, False
            if found.type == MESSAGE & 0xFF and found.position != view.position:
                steps += self._named(found, marks)
            position += found.total
        return steps, position, position >= confirmed

    def _named(self, found: RecordView, marks: dict[bytes, str]) -> Iterator[Step]:
        dispatch = found.dispatch()
        if not dispatch or self._visible.hidden(dispatch[0][0]):
            return
        for key, value in found.properties():
            reason = marks.get(mark_of(key, value))
            if reason == AGAIN:
                yield from self._again(found)
            elif reason is not None:
                yield Step(found.store_ms, "log", reason, f"{_topic_of(found)}, position {found.position}")
            if reason is not None:
                return

    def _again(self, found: RecordView) -> Iterator[Step]:
        """A copy of the message, in a retry topic or the one of dead letters or where an operator has sent it."""
        topic = bytes(found.topic).decode("utf-8", "replace")
        tries = dict(found.properties()).get(RECONSUME_KEY, b"0")
        place = f"{topic}, position {found.position}"
        if topic.startswith(names.DLQ_PREFIX):
            group = topic.removeprefix(names.DLQ_PREFIX)
            yield Step(found.store_ms, "dead letter", "given up", f"{group}, after {_text(tries)} deliveries: {place}")
        elif topic.startswith(names.RETRY_PREFIX):
            group = topic.removeprefix(names.RETRY_PREFIX).partition(RETRY_SEPARATOR)[0]
            yield Step(found.store_ms, "retry", "redelivered", f"{group}, number {_text(tries)}: {place}")
            queue, offset = found.dispatch()[0]
            owner = self._topics.owner(queue)
            if owner is not None:
                at = self._offsets.get(group, *owner)
                yield self._of_group(group, 0 if at is None else at[0], queue, offset)
        else:
            yield Step(found.store_ms, "log", AGAIN, place)


def _marks(properties: dict[bytes, bytes], view: RecordView) -> dict[bytes, str]:
    """What later messages say when they come from this one -> how they are called."""
    marks = {mark_of(key, properties[key]): _REASONS[key] for key in TRACE_KEYS if properties.get(key)}
    ids = [value for key in (b"UNIQ_KEY", *ORIGIN_KEYS) if (value := properties.get(key))]
    for origin in ORIGIN_KEYS:
        marks |= {mark_of(origin, value): AGAIN for value in [*ids, b"%d" % view.position]}
    return marks


AGAIN = "sent again"
_REASONS = {b"traceparent": "caused by it", b"mqttCorrelationData": "answer", b"CORRELATION_ID": "answer"}


def mark_of(key: bytes, value: bytes) -> bytes:
    """A property as it is compared: of a `traceparent` the trace id alone, the same in all that one message causes."""
    if key == b"traceparent":
        parts = value.split(b"-")
        value = parts[1] if len(parts) >= _TRACE_PARTS else value
    if key in ORIGIN_KEYS:
        position = position_of_id(_text(value))
        value = value if position is None else b"%d" % position
    if key == b"CORRELATION_ID":
        key = b"mqttCorrelationData"
    return key + b"=" + value


def _placed(name: str, offset: int) -> Step:
    return Step(None, "queue", "placed", f"{name} at {offset}")


def _progress(group: str, at: int, offset: int, owned: Owned | None, by: str) -> Step:
    if owned is None:
        return Step(None, "group", "passed" if at > offset else "waits", f"{group} at {at}")
    return Step(owned[0], "group", "in flight", f"{by}: given, not acknowledged", owned[0] + owned[1])


def _topic_of(view: RecordView) -> str:
    topic = view.mqtt_topic
    return _text(bytes(view.topic) if topic is None else bytes(topic))


def _text(value: bytes) -> str:
    return bytes(value).decode("utf-8", "replace")[:VALUE_CHARACTERS_MAX]
