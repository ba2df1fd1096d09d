"""Queues copied from a RocketMQ cluster and mirrored back to it: COPY_MESSAGES (9080), COPIED_QUEUES (9081),
BEGIN_RETURN (9082), CLAIM_RETURN (9083), TELL_FOLLOWER (9084) and FOLLOWER (9085).

A request has messages as RocketMQ stores and delivers them, with their offsets in the source queue. They are appended
in one atomic group with the record of which source offsets they are, so a copy that is repeated after a crash, of
either side, finds in the log what is there already: nothing is copied twice and nothing is left out.

```
MIGRATION          key = source, zero byte, queue id (u32), source offset (u64)
                   value = target (i64), count (u64), span (u64)
MIGRATION_RETURN   the same for messages that were mirrored back
```
A message that was mirrored back and is read at the source (`returned`) is not appended: its offsets are recorded, which
is how progress of the way back gets into this log.

`source` names the source queue. Its queue id is that of the queue with the topic's name here; one that was deleted
takes its records with it at the next upkeep.

Body, flag, tags, keys, properties, unique id, born time and host, number of retries and sysFlag are kept; the bits of
transactions and of the hosts' sizes are not. A copied message is available at once whatever delay its properties name,
also in a topic that takes no writes from producers.

Invariant: the source offsets of a queue are copied in rising order, each once. Loop thread only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from broker.migration.followers import FollowerReport, FollowerReports
from broker.migration.offset_map import BothWays, CopiedRun, OffsetMap
from broker.migration.returned import RETURNED_KEY, Holders, returned_offset
from broker.requests import Feature, RequestTools, number, refusal_of, text
from broker.rocketmq.send import TRANSACTION_MASK, check_flags, stored_image
from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.access.rights import ADMIN
from remoting.protocol.errors import LocalMisuse, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.rocketmq_form import HIDDEN_PREFIX, SentFields
from remoting.protocol.records.stored_message import StoredMessage, iter_stored, pack_host
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.topics.feature import TopicFeature
    from runtime.metrics import Registry

RETURN = state_kinds.MIGRATION_RETURN
SOURCE_CHARS_MAX = 255
HOST_FLAGS = 0x30
"""Bits of sysFlag for the sizes of the hosts."""

_KEY = struct.Struct(">IQ")
_VALUE = struct.Struct("<qQQ")

SourceQueue = tuple[str, int]
"""(source, id of the target queue)."""


def image_of(message: StoredMessage, topic: str, index: int) -> bytes:
    """The record image of a copied message. Refused when it cannot be kept as it is."""
    check_flags(message.sys_flag)
    properties = dict(message.properties)
    properties.pop(RETURNED_KEY, None)
    if any(key.startswith(HIDDEN_PREFIX) for key in properties):
        remark = f"message {message.queue_offset} has a property that begins with {HIDDEN_PREFIX.decode()}"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
    flags = message.sys_flag & ~(TRANSACTION_MASK | HOST_FLAGS)
    born_host = pack_host(message.born_host).hex().encode()
    fields = SentFields(topic.encode(), index, flags, message.born_ms, born_host, message.reconsume_times)
    return stored_image(fields, properties, message.body, message.flag)


class MigrationFeature(Feature):
    """What was copied into this broker's queues, and the requests to copy more."""

    def __init__(self, tools: RequestTools, *, topics: TopicFeature, registry: Registry) -> None:
        self._tools = tools
        self._topics = topics
        self._maps: dict[SourceQueue, BothWays] = _stored_maps(tools)
        self._holders, self._followers = Holders(), FollowerReports()
        self._copied = registry.counter("rocketmq_migrated_messages_total", "Messages copied from a RocketMQ cluster")
        self._repeated = registry.counter(
            "rocketmq_migrated_repeats_total", "Messages sent by a migration that had been copied before, left out"
        )
        self._returned = registry.counter(
            "rocketmq_returned_messages_total", "Messages mirrored back to a RocketMQ cluster, found there"
        )
        self._returned_again = registry.counter(
            "rocketmq_returned_repeats_total", "Messages mirrored back to a RocketMQ cluster that are there twice"
        )

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            RequestCode.COPY_MESSAGES: self.copy,
            RequestCode.COPIED_QUEUES: self.copied_queues,
            RequestCode.BEGIN_RETURN: self.begin_return,
            RequestCode.CLAIM_RETURN: self.claim_return,
            RequestCode.TELL_FOLLOWER: self.tell_follower,
            RequestCode.FOLLOWER: self.follower,
        }

    def copy(self, peer: Peer, command: Command) -> None:
        """9080: append the messages that are new; answered when they are confirmed.

        `expected` is the source offset behind the last copied message as the sender knows it; refused with the right
        one, `next`, when it is higher, because messages between would be missing. The answer's body has the runs of
        both directions that have changed, as in the answer to 9081, and `[source]` for those that are no more.
        """
        key, topic, index = self._queue_of(peer, command)
        expected = number(command.fields, "expected")
        known = self._maps.get(key, BothWays())
        copied = known.copied
        if expected > (copied or 0):
            remark = f"{topic}/{index} is copied up to {copied or 0}, not {expected}"
            raise Refused(ResponseCode.ILLEGAL_OPERATION, remark, {"next": str(copied or 0)})
        messages = _messages(command.body)
        wanted = [one for one in messages if copied is None or one.queue_offset >= copied]
        self._repeated.value += len(messages) - len(wanted)
        limit = self._tools.config.limits.message_size_bytes_max
        for one in wanted:
            if len(one.body) > limit:
                remark = f"message {one.queue_offset} of {topic}/{index} has {len(one.body)} bytes, {limit} are allowed"
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
        batch = _Batch(known, self._tools.store.reading.next_offset(key[1]))
        for one in wanted:
            batch.take(one, self._returned_from(known, key, topic, index, one), topic, index)
        try:
            self._append(key, batch)
        except LocalMisuse as error:
            raise refusal_of(self._tools.metrics, error) from error
        fields = {"next": str(batch.after.copied or 0), "count": str(len(batch.images))}
        reply = command.reply(fields=fields, body=msgspec.json.encode(batch.shown()))
        self._tools.answers.reply_at(self._tools.store.end_position, peer, reply)

    def copied_queues(self, peer: Peer, command: Command) -> Command:
        """9081: the queues copied from sources whose name begins with the field `source`, with their runs as
        [source, target, count, span], and those of the way back as `returned`; those of the field `topic` only, if
        given."""
        self._tools.authorizer.authorize(peer, command, ADMIN, "migration")
        prefix, topic = command.fields.get("source", ""), command.fields.get("topic")
        found: list[dict[str, Any]] = []
        for (source, queue_id), known in self._maps.items():
            owner = self._topics.table.owner(queue_id)
            if owner is None or not source.startswith(prefix) or topic not in (None, owner[0]):
                continue
            runs, back = ([_shown(run) for run in one.runs] for one in (known.forth, known.back))
            found.append({"topic": owner[0], "queue": owner[1], "source": source, "runs": runs, "returned": back})
        return command.reply(body=msgspec.json.encode({"queues": found}))

    def begin_return(self, peer: Peer, command: Command) -> None:
        """9082: what producers send to this queue from now on is mirrored back; changes nothing if it is already."""
        key, _topic, _index = self._queue_of(peer, command)
        known = self._maps.setdefault(key, BothWays())
        changed = dict(known.back.begin(known.copied or 0, self._tools.store.reading.next_offset(key[1])))
        if changed:
            self._tools.store.append_state(_changes(state_kinds.MIGRATION_RETURN, key, changed))
        self._tools.answers.reply_at(self._tools.store.end_position, peer, command.reply())

    def claim_return(self, peer: Peer, command: Command) -> Command:
        """9083: mirror this queue back as the only one, `holder`; the answer has the ranges of offsets from the field
        `begin` to `end` that were copied from the source: they are not to be sent there. Refused while another does."""
        key, topic, index = self._queue_of(peer, command)
        begin, end = number(command.fields, "begin"), number(command.fields, "end")
        if not self._holders.take(key, text(command.fields, "holder"), self._tools.clock.monotonic_ns() // 1_000_000):
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"another migration mirrors {topic}/{index} back")
        return command.reply(body=msgspec.json.encode(self._maps.get(key, BothWays()).copies(begin, end)))

    def tell_follower(self, peer: Peer, command: Command) -> Command:
        """9084: a migration that follows tells that it runs and which queues stand still (`FollowerReport` as JSON)."""
        name = self._migration_of(peer, command)
        try:
            report = msgspec.json.decode(command.body, type=FollowerReport)
        except msgspec.DecodeError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the report is malformed: {error}") from error
        self._followers.tell(name, report, self._tools.clock.monotonic_ns() // 1_000_000)
        return command.reply()

    def follower(self, peer: Peer, command: Command) -> Command:
        """9085: what the migration of the field `source` told last, as JSON; `null` when it tells nothing now."""
        name = self._migration_of(peer, command)
        report = self._followers.last(name, self._tools.clock.monotonic_ns() // 1_000_000)
        return command.reply(body=msgspec.json.encode(report))

    def _migration_of(self, peer: Peer, command: Command) -> str:
        """The name of the migration that a request is about. Refused when it may not, or the name is none."""
        self._tools.authorizer.authorize(peer, command, ADMIN, "migration")
        name = text(command.fields, "source")
        if not name or len(name) > SOURCE_CHARS_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"no migration is named {name[:SOURCE_CHARS_MAX]!r}")
        return name

    def _queue_of(self, peer: Peer, command: Command) -> tuple[SourceQueue, str, int]:
        """The queue that a request names, its topic and its number there. Refused when it may not, or there is none."""
        fields = command.fields
        topic, index, source = text(fields, "topic"), number(fields, "queueId"), text(fields, "source")
        self._tools.authorizer.authorize(peer, command, ADMIN, topic)
        queue_id = self._topics.queues.find(topic, index)
        if queue_id is None or not source or len(source) > SOURCE_CHARS_MAX or "\0" in source:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{topic}/{index} from {source[:SOURCE_CHARS_MAX]!r}")
        return (source, queue_id), topic, index

    def _returned_from(
        self, known: BothWays, key: SourceQueue, topic: str, index: int, message: StoredMessage
    ) -> int | None:
        """The offset here of a message that was mirrored back; None for a message of the source."""
        value = dict(message.properties).get(RETURNED_KEY)
        if value is None or not known.back.runs:
            return None
        offset = returned_offset(value, key[0], topic, index, message.born_ms)
        first, end = known.back.runs[0].target, self._tools.store.reading.next_offset(key[1])
        return offset if offset is not None and first <= offset < end else None

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Forget the copies of queues that were deleted."""
        del now_ms
        gone = [key for key in self._maps if self._topics.table.owner(key[1]) is None]
        for key in gone:
            known = self._maps.pop(key)
            self._holders.forget(key)
            for kind, runs in ((state_kinds.MIGRATION, known.forth.runs), (RETURN, known.back.runs)):
                if runs:
                    self._tools.store.append_state(_changes(kind, key, {run.source: None for run in runs}))
        return {}

    def status(self) -> dict[str, int]:
        """How many queues have copied messages."""
        return {"copied_queues": len(self._maps)}

    def _append(self, key: SourceQueue, batch: _Batch) -> None:
        """Append the messages of a request with the record of their offsets.

        Raises:
            StoreError, LocalMisuse: nothing was appended.
        """
        store = self._tools.store
        changes = _changes(state_kinds.MIGRATION, key, batch.copied) + _changes(RETURN, key, batch.returned)
        if batch.images:
            placed = Placed(b"".join(batch.images), [(key[1],)] * len(batch.images))
            appended = store.append(placed, atomic=True, changes=changes)
            assert appended.offsets[0] == batch.target, (appended.offsets[0], batch.target)
        elif changes:
            store.append_state(changes)
        if changes:
            self._maps[key] = batch.after
        self._copied.value += len(batch.images)
        self._tools.metrics.messages_in.value += len(batch.images)
        self._returned.value += batch.found
        self._returned_again.value += batch.repeats


class _Batch:
    """What one request adds to a queue: images to append, and the runs that change with them."""

    def __init__(self, known: BothWays, target: int) -> None:
        self.after = BothWays(OffsetMap(known.forth.runs), OffsetMap(known.back.runs))
        self.target = target
        """Offset of the first image."""
        self.images: list[bytes] = []
        self.copied: dict[int, CopiedRun | None] = {}
        self.returned: dict[int, CopiedRun | None] = {}
        self.found = self.repeats = 0

    def take(self, message: StoredMessage, returned: int | None, topic: str, index: int) -> None:
        """Add a message: one of the source, or one that was mirrored back from the offset `returned`. Refused."""
        source = message.queue_offset
        if returned is None:
            image = image_of(message, topic, index)
            self.copied.update(self.after.forth.add(source, self.target + len(self.images), 1))
            self.images.append(image)
        elif returned < self.after.back.target_end:
            self.returned.update(self.after.back.repeat(source))
            self.repeats += 1
        else:
            self.returned.update(self.after.back.add(source, returned, 1))
            self.found += 1

    def shown(self) -> dict[str, list[list[int]]]:
        """The changed runs of both directions, as the answer has them."""
        both = {"runs": self.copied, "returned": self.returned}
        return {
            name: [[start] if run is None else _shown(run) for start, run in changed.items()]
            for name, changed in both.items()
        }


def _messages(body: bytes | memoryview) -> list[StoredMessage]:
    """The messages of a request, in rising order of their offsets. Refused when they are none."""
    try:
        found = list(iter_stored(body))
    except RemoteViolation as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, error.reason) from error
    offsets = [one.queue_offset for one in found]
    if offsets != sorted(set(offsets)) or (offsets and offsets[0] < 0):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the source offsets do not rise")
    return found


def _stored_maps(tools: RequestTools) -> dict[SourceQueue, BothWays]:
    found: dict[SourceQueue, BothWays] = {}
    for kind in (state_kinds.MIGRATION, RETURN):
        runs: dict[SourceQueue, list[CopiedRun]] = {}
        for raw, (value, _position) in tools.store.state.items(kind):
            source, _zero, numbers = bytes(raw).partition(b"\0")
            queue_id, start = _KEY.unpack(numbers)
            runs.setdefault((source.decode(), queue_id), []).append(CopiedRun(start, *_VALUE.unpack(value)))
        for key, some in runs.items():
            known = found.setdefault(key, BothWays())
            if kind == RETURN:
                known.back = OffsetMap(some)
            else:
                known.forth = OffsetMap(some)
    return found


def _changes(kind: int, key: SourceQueue, changed: Mapping[int, CopiedRun | None]) -> list[StateChange]:
    return [StateChange(kind, _key(key, start), None if run is None else _value(run)) for start, run in changed.items()]


def _key(queue: SourceQueue, start: int) -> bytes:
    return queue[0].encode() + b"\0" + _KEY.pack(queue[1], start)


def _shown(run: CopiedRun) -> list[int]:
    return [run.source, run.target, run.count, run.span]


def _value(run: CopiedRun) -> bytes:
    return _VALUE.pack(run.target, run.count, run.span)
