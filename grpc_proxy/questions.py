"""Questions of RocketMQ's tools that a gRPC client answers on its telemetry stream.

    307 GET_CONSUMER_RUNNING_INFO, jstack   -> PrintThreadStackTraceCommand -> the stacks of the client's threads
    309 CONSUME_MESSAGE_DIRECTLY            -> VerifyMessageCommand         -> what became of the message

The broker asks the proxy, as it asks any consumer on a connection of its own, and passes the answer on. 307 without
stacks is answered by the proxy, with what the client's settings say. A nonce ties the two together. Invariant: each
question gets one answer over the connection it came by: the client's own, 207 (CONSUME_MSG_TIMEOUT) after
`ANSWER_TIMEOUT_S`, or 1 when the client is not here, leaves, or cannot be asked. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from grpc_proxy.mapping.incoming import incoming, plain_body
from grpc_proxy.mapping.statuses import Code
from grpc_proxy.stubs import definition
from remoting import clock
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import decode_stored

ANSWER_TIMEOUT_S = 9.0
"""How long a client may take to answer; a second less than the broker waits."""
QUESTIONS_MAX = 1_000
"""Open questions to all clients of a proxy; further ones are refused with SYSTEM_BUSY."""
NONCE_BYTES = 12
RESULTS = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
"""What a client says about a message -> what RocketMQ's tools show; any other code is an exception to them."""
PULLS = definition.ClientType.SIMPLE_CONSUMER
Respond = Callable[[Command], None]
"""Sends an answer over the connection that its question came by."""


class AskedStream(Protocol):
    """The telemetry stream of a client."""

    settings: Any
    """As the client last sent them."""

    def put(self, **command: Any) -> None:
        """Have a command sent."""


@dataclass(slots=True)
class _Open:
    """A question without an answer."""

    stream: AskedStream
    command: Command
    respond: Respond
    begun_s: float
    timer: asyncio.TimerHandle


class Questions:
    """The open questions to the clients of one proxy."""

    def __init__(self, streams: Mapping[str, AskedStream]) -> None:
        """`streams`: client id -> its stream, as long as it is there."""
        self._streams = streams
        self._open: dict[str, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, command: Command, respond: Respond) -> bool:
        """Pass a question of the broker on; False when its client is not here."""
        client_id = command.fields.get("clientId", "")
        stream = self._streams.get(client_id)
        if stream is None:
            respond(command.reply(ResponseCode.SYSTEM_ERROR, f"no client <{client_id}> is connected to this proxy"))
            return False
        if len(self._open) >= QUESTIONS_MAX:
            respond(command.reply(ResponseCode.SYSTEM_BUSY, f"{QUESTIONS_MAX} questions to clients are open"))
            return True
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            self._verify(stream, command, respond)
        elif command.fields.get("jstackEnable", "").lower() == "true":
            self._begin(stream, command, respond, "print_thread_stack_trace_command", {})
        else:
            respond(command.reply(body=_running_info(stream.settings, None)))
        return True

    def answered(self, stream: AskedStream, kind: str, command: Any) -> bool:
        """Take a client's answer; False for one to no question, or to that of another client."""
        nonce = getattr(command, kind).nonce
        question = self._open.get(nonce)
        if question is None or question.stream is not stream:
            return False
        wanted = question.command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY
        if wanted != (kind == "verify_message_result"):
            return False
        del self._open[nonce]
        question.timer.cancel()
        if wanted:
            spent_ms = int((clock.monotonic_s() - question.begun_s) * 1_000)
            body = _result(command.status, spent_ms)
        else:
            body = _running_info(stream.settings, command.thread_stack_trace.thread_stack_trace)
        question.respond(question.command.reply(body=body))
        return True

    def left(self, stream: AskedStream) -> None:
        """Answer what a client left open."""
        for nonce in [nonce for nonce, one in self._open.items() if one.stream is stream]:
            self._end(nonce, ResponseCode.SYSTEM_ERROR, "the client has ended its stream")

    def _verify(self, stream: AskedStream, command: Command, respond: Respond) -> None:
        try:
            stored, _total = decode_stored(command.body)
            topic = command.fields.get("topic") or stored.topic.decode("utf-8", "replace")
            group = stream.settings.subscription.group
            message = incoming(stored, plain_body(stored)[0], topic, group.resource_namespace)
        except (LightMQError, ValueError) as error:
            respond(command.reply(ResponseCode.SYSTEM_ERROR, f"the message cannot be shown to a gRPC client: {error}"))
            return
        self._begin(stream, command, respond, "verify_message_command", {"message": message})

    def _begin(self, stream: AskedStream, command: Command, respond: Respond, kind: str, parts: dict[str, Any]) -> None:
        loop, nonce = asyncio.get_running_loop(), secrets.token_hex(NONCE_BYTES)
        remark = f"the client did not answer within {ANSWER_TIMEOUT_S:.0f} s"
        timer = loop.call_later(ANSWER_TIMEOUT_S, self._end, nonce, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        self._open[nonce] = _Open(stream, command, respond, clock.monotonic_s(), timer)
        stream.put(**{kind: {"nonce": nonce, **parts}})

    def _end(self, nonce: str, code: int, remark: str) -> None:
        question = self._open.pop(nonce)
        question.timer.cancel()
        question.respond(question.command.reply(code, remark))


def _result(status: Any, spent_ms: int) -> bytes:
    """The body of an answer to 309: a ConsumeMessageDirectlyResult."""
    result = RESULTS.get(status.code, "CR_THROW_EXCEPTION")
    remark = f"gRPC client: {status.message}" if status.message else "gRPC client"
    shown = {"order": False, "autoCommit": True, "consumeResult": result, "remark": remark, "spentTimeMills": spent_ms}
    return msgspec.json.encode(shown)


def _running_info(settings: Any, stacks: str | None) -> bytes:
    """The body of an answer to 307: a ConsumerRunningInfo, of which a gRPC client says little."""
    kind = "CONSUME_ACTIVELY" if settings.client_type == PULLS else "CONSUME_PASSIVELY"
    properties = {"PROP_CONSUME_TYPE": kind, "PROP_CLIENT_VERSION": settings.user_agent.version}
    tables: dict[str, Any] = {name: {} for name in ("mqTable", "mqPopTable", "statusTable", "userConsumerInfo")}
    return msgspec.json.encode({"properties": properties, "subscriptionSet": [], **tables, "jstack": stacks})
