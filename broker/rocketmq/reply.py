"""Request and reply: 324 and 325 hand a consumer's answer to the producer that asked (326).

A request is an ordinary message with the client id of who asked. Its consumer sends the answer to the topic
`CLUSTER_REPLY_TOPIC`, which is made with the first request so that it has a route; the answer goes straight to the
connection of that client and is not stored. A client that is not connected here is a refusal, so whoever answers knows.
Loop thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.rocketmq.send_body import SHORT_NAMES, parse_send
from remoting.access.rights import PUBLISH
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records.properties import encode_properties
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.clients import Clients
    from broker.requests.tools import RequestTools
    from broker.topics.topics import Topics

REPLY_TO_CLIENT = b"REPLY_TO_CLIENT"
CORRELATION_ID = b"CORRELATION_ID"
PUSH_REPLY_TIME = b"PUSH_REPLY_TIME"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"


def reply_topic(cluster_name: str) -> str:
    """The topic RocketMQ's clients send answers to."""
    return cluster_name + REPLY_TOPIC_SUFFIX


class ReplyRequests:
    """Hands answers to the producers that wait for them."""

    def __init__(self, tools: RequestTools, *, topics: Topics, clients: Clients) -> None:
        self._tools = tools
        self._topics = topics
        self._clients = clients

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.SEND_REPLY_MESSAGE: self.send_reply,
            Code.SEND_REPLY_MESSAGE_V2: self.send_reply,
        }

    def expect_reply(self, properties: Mapping[bytes, bytes]) -> tuple[str, ...]:
        """The topic its answer needs if the message is a request; made when it is not there yet."""
        if REPLY_TO_CLIENT not in properties or CORRELATION_ID not in properties:
            return ()
        return (self._topics.ensure(reply_topic(self._tools.config.cluster_name), 1).name,)

    def send_reply(self, peer: Peer, command: Command) -> Command:
        """324, 325: hand an answer to who waits for it."""
        request = parse_send(command.fields, short=command.code == Code.SEND_REPLY_MESSAGE_V2)
        self._tools.authorizer.authorize(peer, command, PUBLISH, reply_topic(self._tools.config.cluster_name))
        client_id = request.properties.get(REPLY_TO_CLIENT, b"").decode("utf-8", "replace")
        if not client_id or CORRELATION_ID not in request.properties:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL, "a reply needs the properties REPLY_TO_CLIENT and CORRELATION_ID"
            )
        if len(command.body) > self._tools.config.limits.message_size_bytes_max:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the reply of {len(command.body)} bytes is too large")
        asker = self._clients.peer_of(client_id)
        if asker is None or not asker.writable:
            why = "not found" if asker is None else "not read by its client"
            raise Refused(ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{client_id}> {why}.")
        now_ms = self._tools.clock.now_ms()
        properties = request.properties | {PUSH_REPLY_TIME: b"%d" % now_ms}
        fields = {
            **_named(command),
            "properties": encode_properties(properties.items()).decode("utf-8", "replace"),
            "bornHost": f"/{peer.address}",
            "storeHost": f"/{self._tools.identity.address}",
            "storeTimestamp": str(now_ms),
        }
        code = Code.PUSH_REPLY_MESSAGE_TO_CLIENT
        asker.send(Command(code, flag=FLAG_ONEWAY, fields=fields, body=command.body))
        # The client wants the numbers of a stored message; there is none.
        return command.reply(fields={"msgId": "0", "queueId": str(max(0, request.queue_index)), "queueOffset": "0"})


def _named(command: Command) -> dict[str, str]:
    """The request's fields under their long names."""
    fields = command.fields
    if command.code != Code.SEND_REPLY_MESSAGE_V2:
        return {name: fields[name] for name in SHORT_NAMES if name in fields}
    return {name: fields[letter] for name, letter in SHORT_NAMES.items() if letter in fields}
