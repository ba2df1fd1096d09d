"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and CONSUMER_SEND_MSG_BACK (36).

RocketMQ clients get what RocketMQ's broker would tell them: message id, queue, offset; unknown topics are created from
their wish where that is allowed. A message that names a time (`broker.delayed`) waits for it; its answer says the place
it waits at. What is not offered (transactions, priorities, lite topics, recall) is refused by name. Answered when the
message is confirmed and, for a topic that was just created, when the name servers know its route.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from broker.groups.groups import dead_letter_topic, retry_topic
from broker.publishing.append import Done
from broker.requests.fields import number, text
from broker.rocketmq.send_body import SendRequest, build_image, check_flags, check_properties, parse_send, split_batch
from broker.rocketmq.stored_message import HIDDEN_PREFIX, NO_HOST, RECONSUME_KEY, REGION, ipv4_host, message_at
from broker.store.placed import Appended, Placed
from remoting.access.resources import of_group
from remoting.access.rights import CONSUME, PUBLISH
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.message_id import Host, offset_message_id
from remoting.protocol.records.properties import KEYS, TAGS, UNIQUE_KEY
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.groups import Groups
    from broker.publishing.append import Appender
    from broker.publishing.placement import Placement
    from broker.requests.tools import RequestTools
    from broker.rocketmq.reply import ReplyRequests
    from broker.topics.publication import Publication
    from broker.topics.topics import Topics
    from remoting.batches.unpack import Unpacker

TRACED = {"MSG_REGION": REGION, "TRACE_ON": "true"}
"""With this in the answer a producer records a trace, where it is configured to."""


class SendRequests:
    """Takes messages of RocketMQ's producers."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        groups: Groups,
        placement: Placement,
        publication: Publication,
        appender: Appender,
        unpacker: Unpacker,
        replies: ReplyRequests,
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._groups = groups
        self._placement = placement
        self._publication = publication
        self._appender = appender
        self._unpacker = unpacker
        self._replies = replies

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
        self._tools.authorizer.authorize(peer, command, PUBLISH, request.topic)
        check_flags(request.system_flag)
        batch = command.code == Code.SEND_BATCH_MESSAGE or request.batch
        parts = split_batch(command.body) if batch else [(request.flag, request.properties, command.body)]
        topic = self._target(request)
        config = self._placement.topic_for_write(
            topic, min(request.queue_count, self._tools.config.template_queue_count)
        )
        index = self._placement.queue_index(config, request.queue_index)
        born_host = _host(peer.address)
        images = []
        needed: set[str] = {topic}
        for flag, properties, body in parts:
            check_properties(properties)
            needed.update(self._replies.expect_reply(properties))
            properties.setdefault(UNIQUE_KEY, self._tools.identity.unique_id().encode())
            request.flag = flag
            images.append(build_image(request, topic, index, born_host, properties, body))
        unique = parts[0][1][UNIQUE_KEY].decode("utf-8", "replace")
        placed = self._placement.placed(b"".join(images))
        self._appender.add(placed, self._answer(peer, command, placed, needed, index, unique))

    def send_back(self, peer: Peer, command: Command) -> None:
        """A consumer could not handle a message: store it again in its group's retry (or dead-letter) topic."""
        fields = command.fields
        group = text(fields, "group")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        position = number(fields, "offset")
        view = message_at(self._tools.store, self._unpacker, position)
        if view is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {position}")
        config = self._groups.ensure(group)
        properties = {bytes(key): bytes(value) for key, value in view.properties()}
        times = int(properties.get(RECONSUME_KEY, b"0")) + 1
        limit = number(fields, "maxReconsumeTimes", config.retry_max_times)
        dead = times > limit or number(fields, "delayLevel", 0) < 0
        target = dead_letter_topic(group) if dead else retry_topic(group)
        self._topics.ensure(target, 1)
        kept = {key: value for key, value in properties.items() if not key.startswith(HIDDEN_PREFIX)}
        kept.setdefault(b"RETRY_TOPIC", bytes(view.topic))
        kept.setdefault(b"ORIGIN_MESSAGE_ID", fields.get("originMsgId", "").encode())
        kept[TAGS], kept[KEYS] = bytes(view.tags), bytes(view.keys)
        request = SendRequest(group, target, 0, 1, view.flags >> 16, view.born_ms, 0, {}, times, limit, batch=False)
        image = build_image(request, target, 0, _host(peer.address), kept, view.body)
        placed = self._placement.placed(image, now=True)

        def done(_appended: Appended | None, _first: int, refused: Refused | None) -> None:
            if refused is not None:
                peer.send(command.reply(refused.code, refused.remark, refused.fields))
            else:
                self._send_found((target,), peer, command.reply())

        self._appender.add(placed, done)

    def _target(self, request: SendRequest) -> str:
        """The topic a message really goes to: one tried too often goes to the dead-letter topic instead of retry."""
        if not request.topic.startswith(names.RETRY_PREFIX):
            return request.topic
        group = request.topic.removeprefix(names.RETRY_PREFIX)
        config = self._groups.ensure(group)
        limit = request.reconsume_times_max if request.reconsume_times_max >= 0 else config.retry_max_times
        if request.reconsume_times <= limit:
            return request.topic
        target = dead_letter_topic(group)
        self._topics.ensure(target, 1)
        request.queue_index = 0
        return target

    def _answer(
        self,
        peer: Peer,
        command: Command,
        placed: Placed,
        topics: Collection[str],
        index: int,
        unique: str,
    ) -> Done:
        def done(appended: Appended | None, first: int, refused: Refused | None) -> None:
            if command.is_oneway:
                return
            if refused is not None:
                peer.send(command.reply(refused.code, refused.remark, refused.fields))
                return
            assert appended is not None, "who is not refused was stored"
            offset = appended.offsets[first]
            fields = {
                "msgId": self._message_ids(placed.queues[0][0], offset, len(placed)),
                "queueId": str(index),
                "queueOffset": str(offset),
                "transactionId": unique,
                **TRACED,
            }
            self._send_found(topics, peer, command.reply(0, None, fields))

        return done

    def _send_found(self, topics: Collection[str], peer: Peer, reply: Command) -> None:
        """Answer who sent a message, once the topics it created have their routes."""
        if self._publication.pending:
            self._publication.when_published(topics, partial(peer.send, reply))
        else:
            peer.send(reply)

    def _message_ids(self, queue_id: int, offset: int, count: int) -> str:
        """Ids made of log positions, which only the index knows when a segment ended in between; 0 for the expired."""
        positions = self._tools.store.reading.positions(queue_id, offset, count)
        host = ipv4_host(self._tools.identity.host, self._tools.identity.port)
        return ",".join([offset_message_id(host, position) for position in [0] * (count - len(positions)) + positions])


def _host(address: str) -> Host:
    host, _separator, port = address.rpartition(":")
    return ipv4_host(host, int(port)) if port.isdigit() else NO_HOST
