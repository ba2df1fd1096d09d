"""What producers send: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), and CONSUMER_SEND_MSG_BACK
(36).

Send requests carry header fields in the long or the one-letter form, properties and batch bodies: codes 310 and 320
name the fields a..n, code 10 spells them out, the C++ client mixes value types. They become one `SendRequest` each; the
native core makes the record images of its messages in one call and gives those that need more than to be stored to
`_Special`.

RocketMQ clients get what RocketMQ's broker answers: message id, queue, offset. Unknown topics are created as the
request asks where that is allowed. A message that names a time (`broker.delayed`) waits for it, the half message of a
transaction (`broker.transactions`) for its outcome; the answer names the place where it waits, and for one that waits
for its time the handle to recall it by. What is not offered is refused by name. A send is answered when the message is
confirmed and, for a topic that was just created, when the name servers know its route.

A message whose property `originMqttTopic` names a topic below the one it is sent to is an MQTT message
(`mqtt_messages`), and so is one with a lite topic (`broker.lite`). A request needs the topic of its answer (`replies`),
which is created with it. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from broker.groups.groups import ORIGIN_ID, RETRY_TOPIC, dead_letter_origin, dead_letter_topic, retry_topic
from broker.publishing.append import Done
from broker.publishing.placement import refuse_reserved
from broker.requests import NUMBERS_END, TRUE, number, text
from broker.rocketmq.mqtt_messages import COMPRESSED_FLAG, COMPRESSION_MASK, mqtt_image, mqtt_topic_of, plain_body
from broker.rocketmq.stored_message import REGION, ipv4_host, message_at
from broker.store.placed import Appended, Placed
from broker.topics.topics import PRIORITY_KEY, TopicSettings, queue_of_priority
from remoting.access import visibility
from remoting.access.rights import CONSUME, PUBLISH, of_group, of_record, of_topic
from remoting.native import core as native
from remoting.protocol.errors import NotOffered, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import delay, names
from remoting.protocol.records.image import image_views
from remoting.protocol.records.properties import (
    KEYS,
    PROPERTIES_SIZE_BYTES_MAX,
    TAGS,
    UNIQUE_KEY,
    decode_properties,
    encode_properties,
    extended,
)
from remoting.protocol.records.record import MQTT_TOPIC_KEY
from remoting.protocol.records.rocketmq_form import (
    FIRST_POP_TIME,
    HIDDEN_PREFIX,
    INNER_MULTI_DISPATCH,
    NO_HOST,
    RECONSUME_KEY,
    REPLY_TO_CLIENT,
    SentFields,
    decode_batch,
    sent_image,
)
from remoting.protocol.records.stored_message import HOSTS_KEPT_MAX, pack_host
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
_NAMES, _LETTERS = tuple(SHORT_NAMES), tuple(SHORT_NAMES.values())
NUMBERS = (
    "queueId", "defaultTopicQueueNums", "sysFlag", "bornTimestamp", "flag", "reconsumeTimes", "maxReconsumeTimes",
)  # fmt: skip
"""Fields with a number, in the order in which they are checked."""
NOT_OFFERED_FLAGS = {
    0x40: "messages wrapped for another broker (sysFlag 0x40) are not offered by this broker",
    0x80: "inner batches (sysFlag 0x80) are not offered by this broker: send a batch (320)",
}
"""Bits of sysFlag that request what this broker does not do."""
RECALLED_KEY, DELIVER_MS = b"TIMER_DEL_UNIQKEY", b"TIMER_DELIVER_MS"
"""A message with the first is no message: it recalls the one with that unique key which waits for the same time."""
NOT_OFFERED_PROPERTIES = {
    RECALLED_KEY: "recalling a delayed message from within a batch is not offered by this broker",
}
"""The same for properties, unless their value is `false`."""
DUE_DIGITS_MAX = 15
TRANSACTION_MASK, TRANSACTION_PREPARED_FLAG = 0xC, 0x4
TRANSACTION_PREPARED = b"TRAN_MSG"
TRANSACTION_ID = b"__transactionId__"
"""Of a half message and what becomes of it: consumers, those of gRPC too, know by them that it was a transaction."""
STORED_PROPERTIES_BYTES_MAX = 65_535
"""All properties of one record together; its length field is an unsigned 16-bit number."""


SPECIAL_PROPERTIES = frozenset(
    (*NOT_OFFERED_PROPERTIES, TRANSACTION_PREPARED, REPLY_TO_CLIENT, MQTT_TOPIC_KEY, visibility.LITE_TOPIC)
)
"""A message with one of these properties is not only to be stored: `_Special` makes its image."""


class SendRequest(msgspec.Struct):
    """One send request, whichever code it came under."""

    group: str
    topic: str
    queue_index: int
    queue_count: int
    system_flag: int
    born_ms: int
    flag: int
    text: bytes
    """The properties as they came."""
    reconsume_times: int
    reconsume_times_max: int
    batch: bool

    @property
    def properties(self) -> dict[bytes, bytes]:
        """The properties of the request's only message."""
        return dict(decode_properties(self.text))


def parse_send(fields: Mapping[str, str], *, short: bool) -> SendRequest:
    """The request's fields; `short`: they have one-letter names.

    Raises:
        Refused: a required field is missing or not a number.
    """
    get, name = fields.get, _LETTERS if short else _NAMES
    try:
        request = SendRequest(
            get(name[0], ""), fields[name[1]], int(get(name[4]) or -1), int(get(name[3]) or 4), int(get(name[5]) or 0),
            int(get(name[6]) or 0), int(get(name[7]) or 0), get(name[8], "").encode(), int(get(name[9]) or 0),
            int(get(name[11]) or -1), get(name[12]) in TRUE,
        )  # fmt: skip
        if not -NUMBERS_END <= request.born_ms < NUMBERS_END:
            raise ValueError
        return request
    except (KeyError, ValueError):
        named = {name: fields[letter] for name, letter in SHORT_NAMES.items() if letter in fields} if short else fields
        text(named, "topic")
        for one in NUMBERS:
            number(named, one, 0)
        raise


def batch_body(request: SendRequest, body: bytes, size_bytes_max: int) -> bytes:
    """The body of a batch, decompressed when its producer compressed it as a whole, as the C++ client does.

    No batch begins with zlib's first byte: its first message would have two gigabytes. Refused when it cannot be read.
    """
    if not request.system_flag & COMPRESSED_FLAG or not body.startswith(ZLIB_FIRST):
        return body
    plain = bytes(plain_body(request.system_flag, body, size_bytes_max))
    request.system_flag &= ~(COMPRESSED_FLAG | COMPRESSION_MASK)
    return plain


def count_batch(body: bytes) -> int:
    """How many messages a batch body has. Refused(MESSAGE_ILLEGAL) when it is malformed."""
    try:
        count = native.core.count_batch(body)
    except RemoteViolation as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, error.reason) from error
    if not count:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch body has no whole message")
    return count


def holds_half(request: SendRequest, body: bytes, *, batch: bool) -> bool:
    """Whether the request is for the half message of a transaction; refusals are those of `is_half`."""
    state = request.system_flag & TRANSACTION_MASK
    if not state and TRANSACTION_PREPARED not in (body if batch else request.text):
        return False
    parts = properties_of_parts(request, body, batch=batch)
    return any(is_half(request.system_flag, one, batch=batch) for one in parts)


def properties_of_parts(request: SendRequest, body: bytes, *, batch: bool) -> list[dict[bytes, bytes]]:
    """The properties of each message of the request."""
    return [dict(one.properties) for one in decode_batch(body)] if batch else [request.properties]


def wanted_queue(request: SendRequest, body: bytes, config: TopicSettings, *, batch: bool) -> int:
    """The queue that the request names, or that of its priority; refusals are those of `queue_of_priority`."""
    if not config.has_priorities and PRIORITY_KEY not in (body if batch else request.text):
        return request.queue_index
    return queue_of_priority(config, properties_of_parts(request, body, batch=batch), request.queue_index)


def is_half(system_flag: int, properties: Mapping[bytes, bytes], *, batch: bool) -> bool:
    """Whether this is the half message of a transaction.

    Raises:
        Refused: MESSAGE_ILLEGAL, flag and property disagree, for a batch, and for a plain send with the properties of a
            committed message: as a half message, which RocketMQ makes of it, it would never be decided.
    """
    state = system_flag & TRANSACTION_MASK
    half = properties.get(TRANSACTION_PREPARED, b"false").lower() == b"true"
    copied = half and not state and TRANSACTION_ID in properties
    if state not in (0, TRANSACTION_PREPARED_FLAG) or (state and not half) or copied:
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
def born_host_of(address: str) -> bytes:
    """The host of a peer's address as a record keeps it; that of no host for an address without a port."""
    host, _separator, port = address.rpartition(":")
    return pack_host(ipv4_host(host, int(port)) if port.isdigit() else NO_HOST).hex().encode()


def stored_image(
    fields: SentFields, properties: Mapping[bytes, bytes], body: bytes | memoryview, flag: int = 0
) -> bytes:
    """The image of a stored message that is sent again. Refused(MESSAGE_ILLEGAL) for too many properties."""
    size = sum(map(len, properties)) + sum(map(len, properties.values()))
    if size > STORED_PROPERTIES_BYTES_MAX:
        remark = f"properties of {size} bytes, the limit is {STORED_PROPERTIES_BYTES_MAX}"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
    return sent_image(fields, flag, properties, body)


def delayed_retry(properties: Mapping[bytes, bytes], level: int, times: int) -> dict[bytes, bytes]:
    """The properties of a message that a group gets for the `times`th time again, after the pause of a delay level.

    The level is the one that the consumer names, or two more than `times`, as in RocketMQ: 10 s, 30 s, 1 min, …, 2 h.
    """
    kept = {key: value for key, value in properties.items() if key not in delay.TIMED}
    kept[delay.LEVEL] = b"%d" % (level if level > 0 else 2 + times)
    return kept


ZLIB_FIRST = b"\x78"
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


class LiteSends(Protocol):
    """What knows the lite topics."""

    def lite_topic(self, topic: str, properties: dict[bytes, bytes], /, *, alone: bool) -> bytes | None:
        """The MQTT topic of a message that is sent to a lite topic of `topic`, whose property is removed."""


class HandleSource(Protocol):
    """Makes the handles of messages that wait for their time."""

    def of(self, queue_id: int, image: bytes, offset: int, key: str | None = None) -> str | None:
        """The handle of an image with this unique key that waits in this queue; None when it does not wait."""


class KeyRecalls(Protocol):
    """Recalls waiting messages by their unique keys."""

    def recall_by_key(self, peer: Peer, command: Command, topic: str, due_ms: int, key: str) -> None:
        """Recall it and answer as a send; Refused, raised or answered, when no such message waits."""


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
    lite: LiteSends
    recalls: KeyRecalls

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
        batch, body = command.code == Code.SEND_BATCH_MESSAGE or request.batch, command.body
        recalls = not batch and RECALLED_KEY in request.text and bool(request.properties.get(RECALLED_KEY))
        if not recalls:
            self._authorize(peer, command, request, batch=batch)
        check_flags(request.system_flag)
        if batch:
            body = batch_body(request, body, self.tools.config.limits.message_size_bytes_max)
            count_batch(body)
        elif recalls:
            self._recall(peer, command, request)
            return
        half = holds_half(request, body, batch=batch)
        request.system_flag &= ~TRANSACTION_MASK
        topic = self._target(request)
        if visibility.LITE_TOPIC in request.text:
            self.topics.require(topic)  # not one that is created by use
        choice = self.placement.choice
        config = choice.topic_for_write(topic, min(request.queue_count, self.tools.config.template_queue_count))
        index = choice.queue_index(config, wanted_queue(request, body, config, batch=batch))
        fields = SentFields(
            topic.encode(), index, request.system_flag, request.born_ms, born_host_of(peer.address),
            request.reconsume_times,
        )  # fmt: skip
        special = _Special(self, fields, topic, {topic}, batch or half)
        images, unique = native.core.sent(
            body, None if batch else request.text, request.flag, fields, SPECIAL_PROPERTIES, special, self._unique_id
        )
        self._judge_images(peer, command, images, topic)
        with choice.placing.by(peer, command):
            placed = self.transactions.prepare(images, special.properties) if half else self.placement.placed(images)
        owner = self.topics.owner(placed.queues[0][0])
        index = index if owner is None else owner[1]
        transaction = unique.decode("utf-8", "replace")
        self.appender.add(placed, self._answer(peer, command, placed, special.needed, index, transaction))

    def _authorize(self, peer: Peer, command: Command, request: SendRequest, *, batch: bool) -> None:
        """Refuse a request before it has any effect unless its sender may publish wherever it would be visible."""
        authorizer = self.tools.authorizer
        if batch or not visibility.names_more(request.text):
            authorizer.authorize(peer, command, PUBLISH, request.topic)
        elif not authorizer.trusts(peer, command):
            for resource in visibility.of_send(request.topic, request.properties):
                authorizer.authorize(peer, command, PUBLISH, resource)

    def _judge_images(self, peer: Peer, command: Command, images: bytes, topic: str) -> None:
        """The same for what is about to be stored, besides the topic it is sent to: a batch names queues only here."""
        authorizer = self.tools.authorizer
        if visibility.names_more(images) and not authorizer.trusts(peer, command):
            for image in image_views(images):
                for resource in visibility.of_image(image):
                    if resource != topic:
                        authorizer.authorize(peer, command, PUBLISH, resource)

    def _recall(self, peer: Peer, command: Command, request: SendRequest) -> None:
        """Recall a delayed message, as RECALLED_KEY asks; later RocketMQs put the topic before the key."""
        key = request.properties[RECALLED_KEY].decode("utf-8", "replace").removeprefix(f"{request.topic}+")
        due = request.properties.get(DELIVER_MS, b"")
        if not due.isdigit() or len(due) > DUE_DIGITS_MAX:
            remark = "recalling by TIMER_DEL_UNIQKEY needs TIMER_DELIVER_MS, the time that the message waits for"
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
        self.recalls.recall_by_key(peer, command, request.topic, int(due), key)

    def _unique_id(self) -> bytes:
        return self.tools.identity.unique_id().encode()

    def send_back(self, peer: Peer, command: Command) -> None:
        """Store a message that a consumer could not handle again, in its group's retry (or dead-letter) topic."""
        fields = command.fields
        group = text(fields, "group")
        self.tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self.tools.authorizer.authorize(peer, command, CONSUME, of_topic(retry_topic(group)))
        position = number(fields, "offset")
        view = message_at(self.tools.store, self.unpacker, position)
        if view is None or not self.tools.authorizer.allows(peer, command, CONSUME, of_record(view)):
            absent, topic = f"look message by offset failed, {position}", fields.get("originTopic")
            refused = Refused(ResponseCode.SYSTEM_ERROR, absent)
            raise self.tools.authorizer.unseen(peer, command, of_topic(topic) if topic else "", refused)
        config = self.groups.ensure(group)
        properties = {bytes(key): bytes(value) for key, value in view.properties()}
        times = int(properties.get(RECONSUME_KEY, b"0")) + 1
        limit = number(fields, "maxReconsumeTimes", config.retry_max_times)
        dead = times > limit or number(fields, "delayLevel", 0) < 0
        target = dead_letter_topic(group) if dead else retry_topic(group)
        self.topics.ensure(target, 1, maker="")
        kept = {key: value for key, value in properties.items() if not key.startswith(HIDDEN_PREFIX)}
        kept.pop(INNER_MULTI_DISPATCH, None)  # its light queues have it already
        kept.setdefault(RETRY_TOPIC, bytes(view.topic))
        kept.setdefault(ORIGIN_ID, fields.get("originMsgId", "").encode())
        if dead:
            kept.update(dead_letter_origin(kept, bytes(view.topic)))
        else:
            kept = delayed_retry(kept, number(fields, "delayLevel", 0), times)
        if "popTime" in fields:  # the proxy of a gRPC client, which pops
            kept.setdefault(FIRST_POP_TIME, b"%d" % number(fields, "popTime"))
        kept[TAGS], kept[KEYS] = bytes(view.tags), bytes(view.keys)
        sent = SentFields(target.encode(), 0, view.flags >> 16, view.born_ms, born_host_of(peer.address), times)
        placed = self.placement.placed(stored_image(sent, kept, view.body), now=dead)

        def done(_appended: Appended | None, _first: int, refused: Refused | None) -> None:
            if refused is not None:
                peer.send(command.reply(refused.code, refused.remark, refused.fields))
            else:
                self._send_found((target,), peer, command.reply())

        self.appender.add(placed, done)

    def _target(self, request: SendRequest) -> str:
        """The topic a message goes to: one retried too often goes to the dead-letter topic."""
        refuse_reserved(request.topic)
        if not request.topic.startswith(names.RETRY_PREFIX):
            return request.topic
        group = request.topic.removeprefix(names.RETRY_PREFIX).partition(names.RETRY_SEPARATOR)[0]
        config = self.groups.ensure(group)
        limit = request.reconsume_times_max if request.reconsume_times_max >= 0 else config.retry_max_times
        if request.reconsume_times <= limit:
            return request.topic
        target = dead_letter_topic(group)
        self.topics.ensure(target, 1, maker="")
        request.queue_index = 0
        properties = request.properties
        if not delay.TIMED.isdisjoint(properties):  # a dead letter is there at once
            request.text = encode_properties(
                (key, value) for key, value in properties.items() if key not in delay.TIMED
            )
        request.text = extended(request.text, dead_letter_origin(properties, request.topic.encode()).items())
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
                "msgId": self._message_ids(appended, first, placed.queues[0][0], len(placed)),
                "queueId": str(index),
                "queueOffset": str(offset),
                "transactionId": unique,
                **TRACED,
            }
            if len(placed) == 1:
                handle = self.handles.of(placed.queues[0][0], placed.images, offset, unique)
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

    def _message_ids(self, appended: Appended, first: int, queue_id: int, count: int) -> str:
        """Ids made of the log positions of messages that stand in one queue."""
        identity = self.tools.identity
        positions = appended.entries.positions(queue_id, appended.offsets[first], count, first)
        missing = [0] * (count - len(positions))  # messages of the same batch that stand elsewhere, delayed ones
        return native.core.message_ids(ipv4_host(identity.host, identity.port), missing + positions)


class _Special:
    """Makes the images of those messages of one request that need more than to be stored."""

    __slots__ = ("_fields", "_is_plain", "_requests", "_topic", "needed", "properties")

    def __init__(
        self, requests: SendRequests, fields: SentFields, topic: str, needed: set[str], is_plain: bool
    ) -> None:
        """`is_plain`: none of them may be a message for an MQTT topic."""
        self._requests = requests
        self._fields = fields
        self._topic = topic
        self._is_plain = is_plain
        self.needed = needed
        """The topics that must have their routes before the request is answered."""
        self.properties: dict[bytes, bytes] = {}
        """Properties of the last such message."""

    def __call__(self, flag: int, properties: dict[bytes, bytes], body: bytes) -> tuple[bytes, bytes]:
        """The image of a message, and its unique key. Refused when it may not be stored."""
        requests = self._requests
        check_properties(properties)
        self.needed.update(requests.replies.expect_reply(properties))
        unique = properties.setdefault(UNIQUE_KEY, requests.tools.identity.unique_id().encode())
        if properties.pop(TRANSACTION_PREPARED, b"").lower() == b"true":  # a half message, as `is_half` found before
            properties[TRANSACTION_PREPARED], properties[TRANSACTION_ID] = b"true", unique
        self.properties = properties
        mqtt_topic = requests.lite.lite_topic(self._topic, properties, alone=not self._is_plain)
        mqtt_topic = mqtt_topic or mqtt_topic_of(self._topic, properties, batch=self._is_plain)
        if mqtt_topic is None:
            return sent_image(self._fields, flag, properties, body), unique
        plain = plain_body(self._fields.system_flag, body, requests.tools.config.limits.message_size_bytes_max)
        born_ms = self._fields.born_ms or requests.tools.clock.now_ms()
        return mqtt_image(mqtt_topic, properties, plain, born_ms, requests.replies.topic), unique
