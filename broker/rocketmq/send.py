"""What producers send: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), and CONSUMER_SEND_MSG_BACK
(36).

Send requests carry header fields in the long or the one-letter form, properties and batch bodies: codes 310 and 320
name the fields a..n, code 10 spells them out, the C++ client mixes value types. They become one `SendRequest` each and
one record image per message.

RocketMQ clients get what RocketMQ's broker answers: message id, queue, offset. Unknown topics are created as the
request asks where that is allowed. A message that names a time (`broker.delayed`) waits for it, the half message of a
transaction (`broker.transactions`) for its outcome; the answer names the place where it waits, and for one that waits
for its time the handle to recall it by. What is not offered (priorities, lite topics) is refused by name. A send is
answered when the message is confirmed and, for a topic that was just created, when the name servers know its route.

A message whose property `originMqttTopic` names a topic below the one it is sent to is an MQTT message
(`mqtt_messages`). A request needs the topic of its answer (`replies`), which is created with it. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol

from broker.groups.groups import dead_letter_topic, retry_topic
from broker.publishing.append import Done
from broker.requests import flag, number, text
from broker.rocketmq.mqtt_messages import mqtt_image, mqtt_topic_of, plain_body
from broker.rocketmq.stored_message import (
    BORN_HOST_KEY,
    FLAG_KEY,
    HIDDEN_PREFIX,
    NO_HOST,
    RECONSUME_KEY,
    REGION,
    ipv4_host,
    message_at,
)
from broker.store.placed import Appended, Placed
from remoting.access.rights import CONSUME, PUBLISH, of_group
from remoting.protocol.bodies.append_body import decode_batch
from remoting.protocol.errors import NotOffered, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.properties import KEYS, PROPERTIES_SIZE_BYTES_MAX, TAGS, UNIQUE_KEY, decode_properties
from remoting.protocol.records.record import FLAG_SYS_SHIFT
from remoting.protocol.records.stored_message import HOSTS_KEPT_MAX, Host, offset_message_id, pack_host
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.groups import Groups
    from broker.publishing.append import Appender
    from broker.publishing.placement import Placement
    from broker.requests import RequestTools
    from broker.topics.topics import Publication, Topics
    from remoting.batches.unpack import Unpacker

SHORT_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
NOT_OFFERED_FLAGS = {
    0x40: "messages wrapped for another broker (sysFlag 0x40) are not offered by this broker",
    0x80: "inner batches (sysFlag 0x80) are not offered by this broker: send a batch (320)",
}
"""Bits of sysFlag that request what this broker does not do."""
NOT_OFFERED_PROPERTIES = {
    b"TIMER_DEL_UNIQKEY": "recalling a delayed message by a message is not offered by this broker: send RECALL_MESSAGE",
    b"_SYS_MSG_PRIORITY_": "priorities of messages are not offered by this broker",
    b"__LITE_TOPIC": "lite topics are not offered by this broker",
}
"""The same for properties, unless their value is `false`."""
TRANSACTION_MASK, TRANSACTION_PREPARED_FLAG = 0xC, 0x4
TRANSACTION_PREPARED = b"TRAN_MSG"
STORED_PROPERTIES_BYTES_MAX = 65_535
"""All properties of one record together; its length field is an unsigned 16-bit number."""


@dataclass(slots=True)
class SendRequest:
    """One send request, whichever code it came under."""

    group: str
    topic: str
    queue_index: int
    queue_count: int
    system_flag: int
    born_ms: int
    flag: int
    properties: dict[bytes, bytes]
    reconsume_times: int
    reconsume_times_max: int
    batch: bool


def parse_send(fields: Mapping[str, str], *, short: bool) -> SendRequest:
    """The request's fields; `short`: they have one-letter names.

    Raises:
        Refused: a required field is missing or not a number.
    """
    named = {name: fields[letter] for name, letter in SHORT_NAMES.items() if letter in fields} if short else fields
    return SendRequest(
        group=named.get("producerGroup", ""),
        topic=text(named, "topic"),
        queue_index=number(named, "queueId", -1),
        queue_count=number(named, "defaultTopicQueueNums", 4),
        system_flag=number(named, "sysFlag", 0),
        born_ms=number(named, "bornTimestamp", 0),
        flag=number(named, "flag", 0),
        properties=dict(decode_properties(named.get("properties", "").encode())),
        reconsume_times=number(named, "reconsumeTimes", 0),
        reconsume_times_max=number(named, "maxReconsumeTimes", -1),
        batch=flag(named, "batch"),
    )


def split_batch(body: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """(flag, properties, body) of each message of a batch body. Refused(MESSAGE_ILLEGAL) when it is malformed."""
    try:
        messages = decode_batch(body)
    except RemoteViolation as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, error.reason) from error
    if not messages:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch body has no whole message")
    return [(message.flag, dict(message.properties), message.body) for message in messages]


def is_half(system_flag: int, properties: Mapping[bytes, bytes], *, batch: bool) -> bool:
    """Whether this is the half message of a transaction. Refused(MESSAGE_ILLEGAL) when flag and property disagree, or
    for a batch."""
    state = system_flag & TRANSACTION_MASK
    half = properties.get(TRANSACTION_PREPARED, b"false").lower() == b"true"
    if state not in (0, TRANSACTION_PREPARED_FLAG) or (state and not half):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"sysFlag {system_flag:#x} does not fit the property TRAN_MSG")
    if half and batch:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be the half message of a transaction")
    return half


def check_flags(system_flag: int) -> None:
    """NotOffered (MESSAGE_ILLEGAL) for a sysFlag that requests what this broker does not do."""
    for bits, remark in NOT_OFFERED_FLAGS.items():
        if system_flag & bits:
            raise NotOffered(ResponseCode.MESSAGE_ILLEGAL, remark)


def check_properties(properties: Mapping[bytes, bytes]) -> None:
    """Refused(MESSAGE_ILLEGAL) for properties that request what this broker does not do, are too long for an answer, or
    use our hidden names."""
    if not NOT_OFFERED_PROPERTIES.keys().isdisjoint(properties):
        for key, remark in NOT_OFFERED_PROPERTIES.items():
            if properties.get(key, b"false") != b"false":
                raise NotOffered(ResponseCode.MESSAGE_ILLEGAL, remark)
    if any(key.startswith(HIDDEN_PREFIX) for key in properties):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"names of properties may not begin with {HIDDEN_PREFIX.decode()}")
    size = sum(len(key) + len(value) + 2 for key, value in properties.items())
    if size > PROPERTIES_SIZE_BYTES_MAX:
        remark = f"properties of {size} bytes, the limit is {PROPERTIES_SIZE_BYTES_MAX}"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)


@lru_cache(HOSTS_KEPT_MAX)
def _born(host: Host) -> bytes:
    return pack_host(host).hex().encode()


def build_image(
    request: SendRequest,
    topic: str,
    queue_index: int,
    born_host: Host,
    properties: dict[bytes, bytes],
    body: bytes | memoryview,
) -> bytes:
    """The record image of one message of the request; TAGS and KEYS go where our record keeps them."""
    kept = dict(properties)
    tags, keys = kept.pop(TAGS, b""), kept.pop(KEYS, b"")
    kept[BORN_HOST_KEY] = _born(born_host)
    if request.flag:
        kept[FLAG_KEY] = b"%d" % request.flag
    if request.reconsume_times:
        kept[RECONSUME_KEY] = b"%d" % request.reconsume_times
    size = sum(map(len, kept)) + sum(map(len, kept.values()))
    if size > STORED_PROPERTIES_BYTES_MAX:
        remark = f"properties of {size} bytes, the limit is {STORED_PROPERTIES_BYTES_MAX}"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
    return encode_image(
        flags=(request.system_flag & 0xFFFF) << FLAG_SYS_SHIFT,
        born_ms=request.born_ms,
        topic=topic.encode(),
        queue_index=queue_index,
        keys=keys,
        tags=tags,
        properties=list(kept.items()),
        body=body,
    )


TRACED = {"MSG_REGION": REGION, "TRACE_ON": "true"}
"""Fields of an answer that make a producer record a trace, where it is configured to."""


class Replies(Protocol):
    """What answers to requests need."""

    topic: str
    """The topic answers are sent to."""

    def expect_reply(self, properties: Mapping[bytes, bytes], /) -> tuple[str, ...]:
        """The topics that the answer needs if the message is a request; created when they do not exist."""


class HalfMessages(Protocol):
    """Where the half messages of transactions wait."""

    def prepare(self, image: bytes, properties: Mapping[bytes, bytes]) -> Placed:
        """The half message made of an image, to be appended; Refused when it may not wait."""


class HandleSource(Protocol):
    """Makes the handles of messages that wait for their time."""

    def of(self, queue_id: int, image: bytes, offset: int) -> str | None:
        """The handle of an image that waits in this queue at this offset; None when it does not wait."""


@dataclass(frozen=True, slots=True)
class SendRequests:
    """Stores messages of RocketMQ's producers."""

    tools: RequestTools
    topics: Topics
    groups: Groups
    placement: Placement
    publication: Publication
    appender: Appender
    unpacker: Unpacker
    replies: Replies
    transactions: HalfMessages
    handles: HandleSource

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.SEND_MESSAGE: self.send_message,
            Code.SEND_MESSAGE_V2: self.send_message,
            Code.SEND_BATCH_MESSAGE: self.send_message,
            Code.CONSUMER_SEND_MSG_BACK: self.send_back,
        }

    def send_message(self, peer: Peer, command: Command) -> None:
        """One message or a batch; the reply follows when it is confirmed."""
        request = parse_send(command.fields, short=command.code != Code.SEND_MESSAGE)
        self.tools.authorizer.authorize(peer, command, PUBLISH, request.topic)
        check_flags(request.system_flag)
        batch = command.code == Code.SEND_BATCH_MESSAGE or request.batch
        parts = split_batch(command.body) if batch else [(request.flag, request.properties, command.body)]
        half = any(is_half(request.system_flag, properties, batch=batch) for _flag, properties, _body in parts)
        request.system_flag &= ~TRANSACTION_MASK
        topic = self._target(request)
        config = self.placement.choice.topic_for_write(
            topic, min(request.queue_count, self.tools.config.template_queue_count)
        )
        index = self.placement.choice.queue_index(config, request.queue_index)
        born_host = _host(peer.address)
        images = []
        needed: set[str] = {topic}
        for message_flag, properties, body in parts:
            check_properties(properties)
            needed.update(self.replies.expect_reply(properties))
            properties.setdefault(UNIQUE_KEY, self.tools.identity.unique_id().encode())
            request.flag = message_flag
            properties.pop(TRANSACTION_PREPARED, None)
            mqtt_topic = mqtt_topic_of(topic, properties, batch=batch or half)
            if mqtt_topic is None:
                images.append(build_image(request, topic, index, born_host, properties, body))
            else:
                images.append(self._mqtt_image(request, mqtt_topic, properties, body))
        unique = parts[0][1][UNIQUE_KEY].decode("utf-8", "replace")
        if half:
            placed = self.transactions.prepare(images[0], parts[0][1])
        else:
            placed = self.placement.placed(b"".join(images))
        owner = self.topics.owner(placed.queues[0][0])
        index = index if owner is None else owner[1]
        self.appender.add(placed, self._answer(peer, command, placed, needed, index, unique))

    def _mqtt_image(
        self, request: SendRequest, topic: bytes, properties: dict[bytes, bytes], body: bytes | memoryview
    ) -> bytes:
        plain = plain_body(request.system_flag, body, self.tools.config.limits.message_size_bytes_max)
        born_ms = request.born_ms or self.tools.clock.now_ms()
        return mqtt_image(topic, properties, plain, born_ms, self.replies.topic)

    def send_back(self, peer: Peer, command: Command) -> None:
        """Store a message that a consumer could not handle again, in its group's retry (or dead-letter) topic."""
        fields = command.fields
        group = text(fields, "group")
        self.tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        position = number(fields, "offset")
        view = message_at(self.tools.store, self.unpacker, position)
        if view is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {position}")
        config = self.groups.ensure(group)
        properties = {bytes(key): bytes(value) for key, value in view.properties()}
        times = int(properties.get(RECONSUME_KEY, b"0")) + 1
        limit = number(fields, "maxReconsumeTimes", config.retry_max_times)
        dead = times > limit or number(fields, "delayLevel", 0) < 0
        target = dead_letter_topic(group) if dead else retry_topic(group)
        self.topics.ensure(target, 1)
        kept = {key: value for key, value in properties.items() if not key.startswith(HIDDEN_PREFIX)}
        kept.setdefault(b"RETRY_TOPIC", bytes(view.topic))
        kept.setdefault(b"ORIGIN_MESSAGE_ID", fields.get("originMsgId", "").encode())
        kept[TAGS], kept[KEYS] = bytes(view.tags), bytes(view.keys)
        request = SendRequest(group, target, 0, 1, view.flags >> 16, view.born_ms, 0, {}, times, limit, batch=False)
        image = build_image(request, target, 0, _host(peer.address), kept, view.body)
        placed = self.placement.placed(image, now=True)

        def done(_appended: Appended | None, _first: int, refused: Refused | None) -> None:
            if refused is not None:
                peer.send(command.reply(refused.code, refused.remark, refused.fields))
            else:
                self._send_found((target,), peer, command.reply())

        self.appender.add(placed, done)

    def _target(self, request: SendRequest) -> str:
        """The topic a message goes to: one retried too often goes to the dead-letter topic."""
        if not request.topic.startswith(names.RETRY_PREFIX):
            return request.topic
        group = request.topic.removeprefix(names.RETRY_PREFIX)
        config = self.groups.ensure(group)
        limit = request.reconsume_times_max if request.reconsume_times_max >= 0 else config.retry_max_times
        if request.reconsume_times <= limit:
            return request.topic
        target = dead_letter_topic(group)
        self.topics.ensure(target, 1)
        request.queue_index = 0
        return target

    def _answer(
        self, peer: Peer, command: Command, placed: Placed, topics: Collection[str], index: int, unique: str
    ) -> Done:
        def done(appended: Appended | None, first: int, refused: Refused | None) -> None:
            if command.is_oneway:
                return
            if refused is not None:
                peer.send(command.reply(refused.code, refused.remark, refused.fields))
                return
            assert appended is not None, "a message that is not refused was stored"
            offset = appended.offsets[first]
            fields = {
                "msgId": self._message_ids(placed.queues[0][0], offset, len(placed)),
                "queueId": str(index),
                "queueOffset": str(offset),
                "transactionId": unique,
                **TRACED,
            }
            if len(placed) == 1:
                handle = self.handles.of(placed.queues[0][0], placed.images, offset)
                if handle is not None:
                    fields["recallHandle"] = handle
            self._send_found(topics, peer, command.reply(0, None, fields))

        return done

    def _send_found(self, topics: Collection[str], peer: Peer, reply: Command) -> None:
        """Answer a send once the topics it created have their routes."""
        if self.publication.pending:
            self.publication.when_published(topics, partial(peer.send, reply))
        else:
            peer.send(reply)

    def _message_ids(self, queue_id: int, offset: int, count: int) -> str:
        """Ids made of log positions, read from the index because a segment may end in between; 0 for expired ones."""
        positions = self.tools.store.reading.positions(queue_id, offset, count)
        host = ipv4_host(self.tools.identity.host, self.tools.identity.port)
        return ",".join([offset_message_id(host, position) for position in [0] * (count - len(positions)) + positions])


def _host(address: str) -> Host:
    host, _separator, port = address.rpartition(":")
    return ipv4_host(host, int(port)) if port.isdigit() else NO_HOST
