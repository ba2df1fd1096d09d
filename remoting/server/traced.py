"""Spans of RocketMQ's requests: messages sent until they are acknowledged, messages given to a consumer.

A shell around the handlers of a broker's table, which know nothing of it: the request and its answer are looked at
as they pass. Without a tracer the table stays as it is.

    SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE   `publish`, from the request's receipt to its answer
    PULL_MESSAGE, LITE_PULL_MESSAGE, POP_MESSAGE, …     `receive`, from the message's storing to the answer with it

gRPC's clients come the same way, through their proxy. Invariant: requests and answers pass unchanged, and only those in
which the word `traceparent` occurs are decoded. At most `SPANS_MAX` spans are noted for one request. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import request_name
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import decode_properties
from remoting.protocol.records.rocketmq_form import decode_batch
from remoting.protocol.records.stored_message import iter_stored
from remoting.server.acts import WitnessedPeer
from remoting.tracing.context import TRACEPARENT, TraceContext, context_of
from remoting.tracing.spans import SpanKind, Tracer
from remoting.transport.contracts import Handler, Peer

SENDS = frozenset({Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE})
RECEIVES = frozenset({Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.POP_MESSAGE, Code.POP_LITE_MESSAGE})
SPANS_MAX = 32
_WORD = TRACEPARENT.decode()
_NS_OF_MS = 1_000_000
Clock = Callable[[], int]
"""Nanoseconds since 1970."""


def traced(handlers: Mapping[int, Handler], tracer: Tracer | None, now_ns: Clock) -> Mapping[int, Handler]:
    """Return the table with those handlers watched whose requests move messages."""
    if tracer is None:
        return handlers
    found = dict(handlers)
    for code in SENDS & handlers.keys():
        found[code] = _sending(handlers[code], tracer, now_ns)
    for code in RECEIVES & handlers.keys():
        found[code] = _receiving(handlers[code], tracer, now_ns)
    return found


def _sending(handler: Handler, tracer: Tracer, now_ns: Clock) -> Handler:
    def handle(peer: Peer, command: Command) -> Command | None:
        contexts = list(islice(_sent(command), SPANS_MAX))
        if not contexts:
            return handler(peer, command)
        started_ns = now_ns()
        topic = command.fields.get("b") or command.fields.get("topic", "")
        attributes = _attributes(command, "publish", topic)

        def note(error: str) -> None:
            ended_ns = now_ns()
            for context in contexts:
                tracer.note(context, f"publish {topic}", SpanKind.SERVER, started_ns, ended_ns, attributes, error)

        def answered(reply: Command) -> None:
            note(_error(reply))
            peer.send(reply)

        try:
            reply = handler(peer if command.is_oneway else WitnessedPeer(peer, command, answered), command)
        except LightMQError as error:
            note(str(error))
            raise
        if reply is not None or command.is_oneway:
            note("" if reply is None else _error(reply))
        return reply

    return handle


def _receiving(handler: Handler, tracer: Tracer, now_ns: Clock) -> Handler:
    def handle(peer: Peer, command: Command) -> Command | None:
        def answered(reply: Command) -> None:
            note(reply)
            peer.send(reply)

        def note(reply: Command) -> None:
            if TRACEPARENT in reply.body:
                _note_given(tracer, command, reply, now_ns())

        reply = handler(WitnessedPeer(peer, command, answered), command)
        if reply is not None:
            note(reply)
        return reply

    return handle


def _attributes(command: Command, operation: str, topic: str) -> dict[str, str | int]:
    return {
        "messaging.system": "rocketmq", "messaging.operation.name": operation, "messaging.destination.name": topic,
        "rpc.method": request_name(command.code),
    }  # fmt: skip


def _sent(command: Command) -> Iterator[TraceContext]:
    """The sampled contexts of the messages of a send request."""
    fields = command.fields
    text = fields.get("i") or fields.get("properties") or ""
    is_batch = command.code == Code.SEND_BATCH_MESSAGE or fields.get("m") == "true"
    parts: list[list[tuple[bytes, bytes]]] = []
    if _WORD in text:
        parts = [decode_properties(text.encode())]
    elif is_batch and TRACEPARENT in command.body:
        try:
            parts = [one.properties for one in decode_batch(command.body)]
        except LightMQError:  # its handler refuses it
            return
    for properties in parts:
        context = context_of(properties)
        if context is not None and context.sampled:
            yield context


def _note_given(tracer: Tracer, command: Command, reply: Command, now_ns: int) -> None:
    """One span for each sampled message of an answer."""
    group = command.fields.get("consumerGroup", "")
    noted = 0
    for message in iter_stored(reply.body):
        context = context_of(message.properties)
        if context is None or not context.sampled:
            continue
        topic = message.topic.decode("utf-8", "replace")
        attributes = _attributes(command, "receive", topic) | {"messaging.consumer.group.name": group}
        tracer.note(context, f"receive {topic}", SpanKind.SERVER, message.store_ms * _NS_OF_MS, now_ns, attributes)
        noted += 1
        if noted == SPANS_MAX:
            return


def _error(reply: Command) -> str:
    return f"{reply.code} {reply.remark or ''}".rstrip() if reply.code else ""
