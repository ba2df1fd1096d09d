"""Requests of RocketMQ's tools that a connected consumer answers: the broker passes them on and returns the answer.

    307 GET_CONSUMER_RUNNING_INFO               -> 307 to one member: its queues, threads, rates; `jstack`: its stacks
    309 CONSUME_MESSAGE_DIRECTLY                -> 309 to one member, with the stored message: it consumes it at once
    223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS    -> 221 to each member, or to one: the offsets it has read up to

A member that is not connected, or belongs to an older client, is refused with 1; one that does not answer in time with
207 (CONSUME_MSG_TIMEOUT); one whose connection ends first with 1; one that may not read the group, or the message, with
16. Of several members, those that fail are left out of
the answer of 223. Invariant: every request gets exactly one answer, within `ANSWER_TIMEOUT_MS` and a little. Loop
thread only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests import text
from broker.rocketmq.stored_message import position_of_id
from remoting.access.rights import ADMIN, of_group
from remoting.protocol.errors import LightMQError, Refused, RemoteViolation
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import later
from remoting.transport.contracts import AnsweringPeer, Handler, Peer
from remoting.transport.failures import RequestTimeout
from remoting.transport.signature import ACCESS_KEY_FIELD, COUNT_FIELD, SIGNATURE_FIELD

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.groups.groups import GroupClient
    from broker.requests import RequestTools
    from broker.rocketmq.pull import MessageViews
    from broker.topics.topics import Topics
    from remoting.protocol.records.record import RecordView

ANSWER_TIMEOUT_MS = 10_000
"""How long a member may take to answer. RocketMQ's tools wait longer."""
VERSION_MIN = 62
"""RocketMQ 3.1.8, the first whose clients answer these requests."""
_PRIVATE = frozenset({ACCESS_KEY_FIELD, SIGNATURE_FIELD, COUNT_FIELD, "SecurityToken"})
"""Fields of a tool's request that prove its key; members do not get them."""

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class RelayRequests:
    """Passes requests of tools on to the members of a group."""

    tools: RequestTools
    topics: Topics
    groups: ConsumerGroups
    messages: MessageViews

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.GET_CONSUMER_RUNNING_INFO: self.running_info,
            Code.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
        }

    def running_info(self, peer: Peer, command: Command) -> None:
        """307: what a member of a group is doing."""
        member = self._member(peer, command)
        asked = Command(Code.GET_CONSUMER_RUNNING_INFO, fields=_passed_on(command))
        later(peer, command, self._relayed(command, member, asked))

    def consume_directly(self, peer: Peer, command: Command) -> None:
        """309: a member consumes a stored message now, and its result is the answer; offsets do not change."""
        member = self._member(peer, command)
        fields = command.fields
        message_id, group = text(fields, "msgId"), text(fields, "consumerGroup")
        position = position_of_id(message_id)
        shown = self.messages.shown_at(peer, command, position) if position is not None else None
        if shown is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"there is no message {message_id} in this broker")
        view, body = shown
        self._require_right(member, command.code, group, view)
        topic = self.topics.get(fields.get("topic") or "")
        flags = {"brokerName": self.tools.config.broker_name}
        if topic is not None:
            flags["topicSysFlag"] = str(topic.system_flag)
        if self.groups.groups.get(group) is not None:
            flags["groupSysFlag"] = "0"
        asked = Command(Code.CONSUME_MESSAGE_DIRECTLY, fields=_passed_on(command) | flags, body=body)
        later(peer, command, self._relayed(command, member, asked))

    def consumer_status(self, peer: Peer, command: Command) -> None:
        """223: up to where the members of a group have read a topic, by client id."""
        fields = command.fields
        group, topic, wanted = text(fields, "group"), text(fields, "topic"), fields.get("clientAddr") or ""
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        members = self.groups.clients.clients_of(group)
        if not members:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{group}]")
        code = Code.GET_CONSUMER_STATUS_FROM_CLIENT
        named = [member for member in members if wanted in ("", member.client_id)]
        asked = [member for member in named if self.groups.may_receive(member, code, group)]
        later(peer, command, self._statuses(command, asked, {"group": group, "topic": topic}))

    def _member(self, peer: Peer, command: Command) -> GroupClient:
        """The connected member that a request names."""
        group, client_id = text(command.fields, "consumerGroup"), text(command.fields, "clientId")
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        for member in self.groups.clients.clients_of(group):
            if member.client_id == client_id:
                break
        else:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if member.version < VERSION_MIN:
            remark = f"The Consumer <{client_id}> Version <{member.version}> is below RocketMQ 3.1.8 and cannot answer"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        self._require_right(member, command.code, group)
        return member

    def _require_right(self, member: GroupClient, code: int, group: str, record: RecordView | None = None) -> None:
        """Refused(NO_PERMISSION) for a member that may not read what it would be sent."""
        if not self.groups.may_receive(member, code, group, record):
            what = f"the group {group}" if record is None else "this message"
            raise Refused(ResponseCode.NO_PERMISSION, f"the consumer <{member.client_id}> may not read {what}")

    async def _relayed(self, command: Command, member: GroupClient, asked: Command) -> Command:
        """The member's answer as the answer of the request."""
        group, name = command.fields["consumerGroup"], member.client_id
        try:
            answer = await _answer(member, asked)
        except RequestTimeout as error:
            remark = f"consumer <{group}> <{name}> Timeout: {error}"
            raise Refused(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from error
        except Refused:
            raise
        except LightMQError as error:
            remark = f"invoke consumer <{group}> <{name}> Exception: {error}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark) from error
        return command.reply(answer.code, answer.remark, dict(answer.fields), answer.body)

    async def _statuses(self, command: Command, members: list[GroupClient], fields: dict[str, str]) -> Command:
        code = Code.GET_CONSUMER_STATUS_FROM_CLIENT
        asked = [_answer(member, Command(code, fields=dict(fields))) for member in members]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        table: dict[str, list[tuple[dict[str, Any], int]]] = {}
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                table[member.client_id] = _offsets(answer.body)
            else:
                why = f"code {answer.code}" if isinstance(answer, Command) else str(answer)
                self.tools.log.warning("consumer_status_missing", client=member.client_id, reason=why)
        return command.reply(body=_status_body(command.language, table))


def _passed_on(command: Command) -> dict[str, str]:
    return {name: value for name, value in command.fields.items() if name not in _PRIVATE}


async def _answer(member: GroupClient, asked: Command) -> Command:
    """What a member answers. Raises Refused, RequestTimeout, ConnectionLost."""
    peer, address = member.peer, str(member.peer.address)
    if not isinstance(peer, AnsweringPeer):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the client {member.client_id} takes no requests")
    if not peer.writable:
        raise Refused(ResponseCode.SYSTEM_BUSY, f"the client {member.client_id} does not read its connection")
    future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

    def answered(response: Command | None, error: Exception | None) -> None:
        if future.done():
            return
        if response is None:
            future.set_exception(error or RequestTimeout(asked.code, address, ANSWER_TIMEOUT_MS))
            return
        body = bytes(response.body)  # the buffer of the connection is used again after this call
        future.set_result(Command(response.code, remark=response.remark, fields=dict(response.fields), body=body))

    peer.ask(asked, answered, ANSWER_TIMEOUT_MS)
    return await future


def _offsets(body: bytes | memoryview) -> list[tuple[dict[str, Any], int]]:
    """Queue and offset of each queue in a member's answer; empty for an answer that is none."""
    try:
        found = fastjson.loads(body)
        table = found.get("messageQueueTable") or {}
        return [(msgspec.json.decode(queue), int(offset)) for queue, offset in table.items()]
    except (RemoteViolation, msgspec.MsgspecError, AttributeError, TypeError, ValueError):
        return []


def _status_body(language: str, table: dict[str, list[tuple[dict[str, Any], int]]]) -> bytes:
    if language != "JAVA":
        named = {client: {_encode(queue).decode(): at for queue, at in rows} for client, rows in table.items()}
        return _encode({"consumerTable": named})
    rows = [b"%s:%s" % (_encode(client), fastjson.object_keys(offsets)) for client, offsets in table.items()]
    return b'{"consumerTable":{%s}}' % b",".join(rows)
