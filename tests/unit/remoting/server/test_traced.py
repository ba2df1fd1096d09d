"""Requests that move sampled messages have spans; all others, and all answers, pass as they are."""

from __future__ import annotations

import pytest

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.rocketmq_form import batch_part
from remoting.protocol.records.stored_message import StoredMessage, encode_stored
from remoting.server.traced import RECEIVES, SENDS, SPANS_MAX, traced
from remoting.tracing.context import traceparent
from remoting.tracing.spans import FinishedSpan, Tracer
from remoting.transport.calls import answer
from tests.unit.remoting.server.test_acts import FakePeer

PROPERTIES = encode_properties([(b"traceparent", traceparent(7, 8))])
UNSAMPLED = encode_properties([(b"traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-00")])


class Watched:
    """A table with one handler behind `traced`."""

    def __init__(self, code: int, handler) -> None:
        self.tracer, self.peer, self._times = Tracer(), FakePeer(), iter(range(100, 10_000, 100))
        self.table = traced({code: handler}, self.tracer, lambda: next(self._times))

    def ask(self, command: Command) -> list[FinishedSpan]:
        answer(self.table[command.code], self.peer, command)
        return self.tracer.take(100)


def send(properties: bytes = PROPERTIES, flag: int = 0) -> Command:
    return Command(Code.SEND_MESSAGE_V2, 5, flag, fields={"b": "orders", "i": properties.decode()}, body=b"x")


def stored(*properties: bytes) -> bytes:
    one = StoredMessage(b"orders", b"x", 0, 0, 0, 1, 2, (b"\x7f\0\0\1", 1), (b"\x7f\0\0\1", 1))
    parts = [(b"traceparent", value) for value in properties]
    return b"".join(encode_stored(StoredMessage(**{**_fields(one), "properties": [pair]})) for pair in parts)


def _fields(one: StoredMessage) -> dict:
    return {name: getattr(one, name) for name in StoredMessage.__struct_fields__}


def test_without_a_tracer_the_table_is_the_same() -> None:
    table = {Code.SEND_MESSAGE: print}
    assert traced(table, None, int) is table
    assert traced({Code.HEART_BEAT: print}, Tracer(), int) == {Code.HEART_BEAT: print}
    assert not SENDS & RECEIVES


def test_a_send_until_it_is_answered_later() -> None:
    kept = []
    watched = Watched(Code.SEND_MESSAGE_V2, lambda peer, command: kept.append((peer, command)))
    assert watched.ask(send()) == []
    ((peer, command),) = kept
    peer.send(command.reply())
    (span,) = watched.tracer.take(9)
    assert (span.name, span.start_ns, span.end_ns, span.error) == ("publish orders", 100, 200, "")
    assert [reply.opaque for reply in watched.peer.sent] == [5]


def test_sends_that_are_refused() -> None:
    def refuse(_peer, _command):
        raise Refused(14, "disk full")

    (span,) = Watched(Code.SEND_MESSAGE_V2, refuse).ask(send())
    assert "disk full" in span.error
    (span,) = Watched(Code.SEND_MESSAGE_V2, lambda _peer, command: command.reply(14, "disk full")).ask(send())
    assert span.error == "14 disk full"


def test_one_way_and_unsampled_sends() -> None:
    watched = Watched(Code.SEND_MESSAGE_V2, lambda _peer, _command: None)
    assert len(watched.ask(send(flag=FLAG_ONEWAY))) == 1
    assert watched.ask(send(UNSAMPLED, FLAG_ONEWAY)) == []
    assert watched.ask(send(b"", FLAG_ONEWAY)) == []


def test_a_batch_has_a_span_for_each_sampled_message() -> None:
    watched = Watched(Code.SEND_BATCH_MESSAGE, lambda _peer, command: command.reply())
    parts = [PROPERTIES, UNSAMPLED, b"", PROPERTIES]
    command = Command(Code.SEND_BATCH_MESSAGE, 5, fields={"b": "orders"})
    command.body = b"".join(batch_part(b"x", properties) for properties in parts)
    assert [span.trace_id for span in watched.ask(command)] == [7, 7]
    command.body = b"no batch, but traceparent"
    assert watched.ask(command) == []


@pytest.mark.parametrize("later", [True, False])
def test_what_a_consumer_is_given(later: bool) -> None:
    body = stored(traceparent(7, 8), b"nonsense", *[traceparent(9, 9)] * SPANS_MAX)

    def handle(peer, command):
        reply = command.reply(body=body)
        return peer.send(reply) if later else reply

    watched = Watched(Code.PULL_MESSAGE, handle)
    spans = watched.ask(Command(Code.PULL_MESSAGE, 5, fields={"consumerGroup": "g"}))
    assert (spans[0].name, spans[0].trace_id, spans[0].start_ns) == ("receive orders", 7, 2_000_000)
    assert spans[0].attributes["messaging.consumer.group.name"] == "g"
    assert len(spans) == SPANS_MAX
    (reply,) = watched.peer.sent
    assert reply.body == body
