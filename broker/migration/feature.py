"""Queues copied from a RocketMQ cluster: COPY_MESSAGES (9080) and COPIED_QUEUES (9081).

A request has messages as RocketMQ stores and delivers them, with their offsets in the source queue. They are appended
in one atomic group with the record of which source offsets they are, so a copy that is repeated after a crash, of
either side, finds in the log what is there already: nothing is copied twice and nothing is left out.

```
MIGRATION   key = source, zero byte, queue id (u32), source offset (u64)   value = target (i64), count (u64), span (u64)
```
`source` names the source queue. Its queue id is that of the queue with the topic's name here; one that was deleted
takes its records with it at the next upkeep.

Body, flag, tags, keys, properties, unique id, born time and host, number of retries and sysFlag are kept; the bits of
transactions and of the hosts' sizes are not. A copied message is available at once whatever delay its properties name,
also in a topic that takes no writes from producers.

Invariant: the source offsets of a queue are copied in rising order, each once. Loop thread only.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec

from broker.migration.offset_map import CopiedRun, OffsetMap
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
        self._maps: dict[SourceQueue, OffsetMap] = _stored_maps(tools)
        self._copied = registry.counter("rocketmq_migrated_messages_total", "Messages copied from a RocketMQ cluster")
        self._repeated = registry.counter(
            "rocketmq_migrated_repeats_total", "Messages sent by a migration that had been copied before, left out"
        )

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.COPY_MESSAGES: self.copy, RequestCode.COPIED_QUEUES: self.copied_queues}

    def copy(self, peer: Peer, command: Command) -> None:
        """9080: append the messages that are new; answered when they are confirmed.

        `expected` is the source offset behind the last copied message as the sender knows it; refused with the right
        one, `next`, when it is higher, because messages between would be missing. The answer's body has the runs that
        have changed, as in the answer to 9081, and `[source]` for those that are no more.
        """
        fields = command.fields
        topic, index, source = text(fields, "topic"), number(fields, "queueId"), text(fields, "source")
        expected = number(fields, "expected")
        self._tools.authorizer.authorize(peer, command, ADMIN, topic)
        queue_id = self._topics.queues.find(topic, index)
        if queue_id is None or not source or len(source) > SOURCE_CHARS_MAX or "\0" in source:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{topic}/{index} from {source[:SOURCE_CHARS_MAX]!r}")
        known = self._maps.get((source, queue_id), OffsetMap())
        copied = known.copied
        if expected > (copied or 0):
            remark = f"{topic}/{index} is copied up to {copied or 0}, not {expected}"
            raise Refused(ResponseCode.ILLEGAL_OPERATION, remark, {"next": str(copied or 0)})
        messages = _messages(command.body)
        wanted = [one for one in messages if copied is None or one.queue_offset >= copied]
        self._repeated.value += len(messages) - len(wanted)
        try:
            changed = self._append(source, queue_id, known, [(one, image_of(one, topic, index)) for one in wanted])
        except LocalMisuse as error:
            raise refusal_of(self._tools.metrics, error) from error
        fields = {"next": str(known.copied or 0), "count": str(len(wanted))}
        body = msgspec.json.encode([[start] if run is None else _shown(run) for start, run in changed.items()])
        reply = command.reply(fields=fields, body=body)
        self._tools.answers.reply_at(self._tools.store.end_position, peer, reply)

    def copied_queues(self, peer: Peer, command: Command) -> Command:
        """9081: the queues copied from sources whose name begins with the field `source`, with their runs as
        [source, target, count, span]; those of the field `topic` only, if given."""
        self._tools.authorizer.authorize(peer, command, ADMIN, "migration")
        prefix, topic = command.fields.get("source", ""), command.fields.get("topic")
        found: list[dict[str, Any]] = []
        for (source, queue_id), known in self._maps.items():
            owner = self._topics.table.owner(queue_id)
            if owner is None or not source.startswith(prefix) or topic not in (None, owner[0]):
                continue
            runs = [_shown(run) for run in known.runs]
            found.append({"topic": owner[0], "queue": owner[1], "source": source, "runs": runs})
        return command.reply(body=msgspec.json.encode({"queues": found}))

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Forget the copies of queues that were deleted."""
        del now_ms
        gone = [key for key in self._maps if self._topics.table.owner(key[1]) is None]
        for key in gone:
            changes = [StateChange(state_kinds.MIGRATION, _key(key, run.source), None) for run in self._maps[key].runs]
            self._tools.store.append_state(changes)
            del self._maps[key]
        return {}

    def status(self) -> dict[str, int]:
        """How many queues have copied messages."""
        return {"copied_queues": len(self._maps)}

    def _append(
        self, source: str, queue_id: int, known: OffsetMap, wanted: list[tuple[StoredMessage, bytes]]
    ) -> dict[int, CopiedRun | None]:
        """Append new messages with the record of their offsets; returns the runs that changed, by source offset.

        Raises:
            StoreError, LocalMisuse: nothing was appended.
        """
        store = self._tools.store
        after = OffsetMap(known.runs)
        changed: dict[int, CopiedRun | None] = {}
        if not wanted:
            return changed
        target = store.reading.next_offset(queue_id)
        for at, (message, _image) in enumerate(wanted):
            changed.update(after.add(message.queue_offset, target + at, 1))
        placed = Placed(b"".join(image for _message, image in wanted), [(queue_id,)] * len(wanted))
        key = source, queue_id
        changes = [
            StateChange(state_kinds.MIGRATION, _key(key, start), None if run is None else _value(run))
            for start, run in changed.items()
        ]
        appended = store.append(placed, atomic=True, changes=changes)
        assert appended.offsets[0] == target, (appended.offsets[0], target)
        known.runs = after.runs
        self._maps[key] = known
        self._copied.value += len(wanted)
        self._tools.metrics.messages_in.value += len(wanted)
        return changed


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


def _stored_maps(tools: RequestTools) -> dict[SourceQueue, OffsetMap]:
    runs: dict[SourceQueue, list[CopiedRun]] = {}
    for raw, (value, _position) in tools.store.state.items(state_kinds.MIGRATION):
        source, _zero, numbers = bytes(raw).partition(b"\0")
        queue_id, start = _KEY.unpack(numbers)
        runs.setdefault((source.decode(), queue_id), []).append(CopiedRun(start, *_VALUE.unpack(value)))
    return {key: OffsetMap(found) for key, found in runs.items()}


def _key(queue: SourceQueue, start: int) -> bytes:
    return queue[0].encode() + b"\0" + _KEY.pack(queue[1], start)


def _shown(run: CopiedRun) -> list[int]:
    return [run.source, run.target, run.count, run.span]


def _value(run: CopiedRun) -> bytes:
    return _VALUE.pack(run.target, run.count, run.span)
