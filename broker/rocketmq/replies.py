"""Request and reply: SEND_REPLY_MESSAGE (324, 325), and answers between RocketMQ's and MQTT's clients.

A request is an ordinary message with the client id of its sender, who waits; the forms are in `mqtt_messages`.

    answered by a RocketMQ client     324, 325 -> 326 to the sender's connection, not stored
      to a request from MQTT          324, 325 -> a message on its Response Topic, QoS 1; answered when confirmed
    answered by an MQTT 5 client      PUBLISH below <cluster>_REPLY_TOPIC -> 326 to the sender's connection

The topic <cluster>_REPLY_TOPIC is created with the first request, so that its consumers find a route for the answer.
An answer of an MQTT client is stored like any message; when it is confirmed, the sender it names gets it if it is
connected here, else it is counted as dropped. Answers confirmed while no broker of the group was master are not passed
on: their senders have timed out. The sender is the client of that id, which belongs to the key whose heartbeats brought
it (`broker.groups.feature`); nobody else is given its answers. Invariant: each confirmed answer is passed on at most
once. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.rocketmq import mqtt_messages
from broker.rocketmq.mqtt_messages import reply_topic
from broker.rocketmq.send import SHORT_NAMES, parse_send
from remoting.access.rights import PUBLISH
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records import names
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.rocketmq_form import CORRELATION_ID, MQTT_SENDER, REPLY_TO_CLIENT
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.groups import Clients
    from broker.publishing.append import Appender
    from broker.publishing.placement import Placement
    from broker.requests import RequestTools
    from broker.rocketmq.send import SendRequest
    from broker.store.placed import Appended
    from broker.topics.feature import TopicFeature

PUSH_REPLY_TIME = b"PUSH_REPLY_TIME"
ANSWERS_PER_READ = 64
ANSWER_BYTES_PER_READ = 1024 * 1024
"""Answers of MQTT clients are read in pieces of so many messages and bytes."""


class ReplyRequests:
    """Passes answers to the clients that wait for them."""

    def __init__(
        self, tools: RequestTools, *, topics: TopicFeature, clients: Clients, placement: Placement, appender: Appender
    ) -> None:
        self._tools = tools
        self._topics = topics.table
        self._publication = topics.publication
        self._clients = clients
        self._placement = placement
        self._appender = appender
        self.topic = reply_topic(tools.config.cluster_name)
        self._next: dict[int, int] = {}
        """Queue of answers from MQTT -> the offset of the next one."""
        self._parent = names.parent_topic(self.topic.encode()).decode()
        self._topics.on_change(self._topic_changed)
        self._follow()
        tools.store.positions.on_advance(self._advanced, self._next)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.SEND_REPLY_MESSAGE: self.send_reply, Code.SEND_REPLY_MESSAGE_V2: self.send_reply}

    def expect_reply(self, properties: Mapping[bytes, bytes]) -> tuple[str, ...]:
        """The topics that the answer needs if the message is a request; created when they do not exist.

        Raises:
            Refused: MESSAGE_ILLEGAL, the request has a TTL that is no time.
        """
        if not mqtt_messages.is_request(properties):
            return ()
        mqtt_messages.check_ttl(properties)
        return self._ensured()

    def expect_mqtt_requests(self) -> None:
        """As `expect_reply`, for requests of MQTT clients on their way to a consumer."""
        self._ensured()

    def when_found(self, then: Callable[[], None]) -> None:
        """Call `then` once the controllers within reach have the routes of the topics that answers need."""
        if self._publication.pending:
            self._publication.when_published((self.topic, self._parent), then)
        else:
            then()

    def _ensured(self) -> tuple[str, ...]:
        return tuple(self._topics.ensure(name, 1, maker="").name for name in dict.fromkeys((self.topic, self._parent)))

    def send_reply(self, peer: Peer, command: Command) -> Command | None:
        """324, 325: pass an answer to the client that waits for it."""
        request = parse_send(command.fields, short=command.code == Code.SEND_REPLY_MESSAGE_V2)
        self._tools.authorizer.authorize(peer, command, PUBLISH, self.topic)
        sender = request.properties.get(REPLY_TO_CLIENT, b"")
        if not sender or CORRELATION_ID not in request.properties:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL, "a reply needs the properties REPLY_TO_CLIENT and CORRELATION_ID"
            )
        if len(command.body) > self._tools.config.limits.message_size_bytes_max:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the reply of {len(command.body)} bytes is too large")
        if sender.startswith(MQTT_SENDER):
            self._publish(peer, command, request)
            return None
        fields = _named(command) | {"bornHost": f"/{peer.address}"}
        self._push(sender.decode("utf-8", "replace"), fields, request.properties, command.body)
        # The client expects the numbers of a stored message; there is none.
        return command.reply(fields={"msgId": "0", "queueId": str(max(0, request.queue_index)), "queueOffset": "0"})

    # -- to RocketMQ's clients -----------------------------------------------------------------------------------------

    def _push(
        self, client_id: str, fields: Mapping[str, str], properties: Mapping[bytes, bytes], body: bytes | memoryview
    ) -> None:
        """Send 326; Refused when the client is not connected here or does not read."""
        asker = self._clients.peer_of(client_id)
        if asker is None or not asker.writable:
            why = "not found" if asker is None else "not read by its client"
            raise Refused(ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{client_id}> {why}.")
        now_ms = self._tools.clock.now_ms()
        pairs = {**properties, PUSH_REPLY_TIME: b"%d" % now_ms}.items()
        pushed = {
            **fields,
            "properties": encode_properties(pairs).decode("utf-8", "replace"),
            "storeHost": f"/{self._tools.identity.address}",
            "storeTimestamp": str(now_ms),
        }
        code = Code.PUSH_REPLY_MESSAGE_TO_CLIENT
        asker.send(Command(code, flag=FLAG_ONEWAY, fields=pushed, body=bytes(body)))

    def _follow(self) -> None:
        """Pass on the answers of MQTT clients that are confirmed from now on."""
        self._next.clear()
        if self._topics.get(self._parent) is not None:
            reading = self._tools.store.reading
            self._next.update({queue: reading.bounds(queue)[1] for queue in self._topics.queue_ids(self._parent)})

    def _topic_changed(self, name: str, _created: bool) -> None:
        if name == self._parent:
            known = dict(self._next)
            self._follow()
            self._next.update({queue: offset for queue, offset in known.items() if queue in self._next})

    def _advanced(self, queues: Sequence[int]) -> None:
        for queue in queues:
            if queue in self._next:
                self._pass_on(queue)

    def _pass_on(self, queue: int) -> None:
        reading = self._tools.store.reading
        end = reading.bounds(queue)[1]
        at, self._next[queue] = self._next[queue], end  # before anything that may fail: at most once
        while at < end:
            found = reading.read(queue, at, ANSWERS_PER_READ, ANSWER_BYTES_PER_READ)
            for record in found.records:
                self._pass_one(RecordView(record))
            if not found.records:
                return
            at = found.next_offset

    def _pass_one(self, view: RecordView) -> None:
        topic = view.mqtt_topic
        if topic is None:
            return
        drop = "reply_malformed"
        try:
            answer = mqtt_messages.answer_of(bytes(topic), self.topic, view.properties())
            drop = "reply_not_delivered"
            self._push(answer.client_id, self._pushed_fields(view), answer.properties, view.body)
        except Refused as refused:
            self._tools.metrics.dropped.child(drop).value += 1
            self._tools.log.info(drop, topic=bytes(topic).decode(), reason=refused.remark)

    def _pushed_fields(self, view: RecordView) -> dict[str, str]:
        return {
            "producerGroup": "mqtt", "topic": self.topic, "defaultTopic": self.topic, "defaultTopicQueueNums": "1",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": str(view.born_ms), "flag": "0", "reconsumeTimes": "0",
            "unitMode": "false", "bornHost": f"/{self._tools.identity.address}",
        }  # fmt: skip

    # -- to MQTT clients -----------------------------------------------------------------------------------------------

    def _publish(self, peer: Peer, command: Command, request: SendRequest) -> None:
        """Store the answer as a message on the Response Topic; the reply follows when it is confirmed."""
        born_ms = request.born_ms or self._tools.clock.now_ms()
        body = mqtt_messages.plain_body(
            request.system_flag, command.body, self._tools.config.limits.message_size_bytes_max
        )
        topic, image = mqtt_messages.response_image(request.properties, body, born_ms)
        self._tools.authorizer.authorize(peer, command, PUBLISH, topic.decode("utf-8", "replace"))
        with self._placement.choice.placing.by(peer, command):
            placed = self._placement.placed(image, now=True)
        owner = self._topics.owner(placed.queues[0][0])

        def done(appended: Appended | None, first: int, refused: Refused | None) -> None:
            if command.is_oneway:
                return
            if refused is not None:
                peer.send(command.reply(refused.code, refused.remark, refused.fields))
                return
            assert appended is not None, "a message that is not refused was stored"
            queue_index = 0 if owner is None else owner[1]
            fields = {"msgId": "0", "queueId": str(queue_index), "queueOffset": str(appended.offsets[first])}
            peer.send(command.reply(fields=fields))

        self._appender.add(placed, done)


def _named(command: Command) -> dict[str, str]:
    """The request's fields under their long names."""
    fields = command.fields
    if command.code != Code.SEND_REPLY_MESSAGE_V2:
        return {name: fields[name] for name in SHORT_NAMES if name in fields}
    return {name: fields[letter] for name, letter in SHORT_NAMES.items() if letter in fields}
