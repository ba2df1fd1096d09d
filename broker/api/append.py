"""APPEND_MANY (9001): all publishes of one loop turn become one append to the log.

Frames that arrive in one turn are checked and placed one by one, gathered, and appended together when the turn is over;
each frame is answered when the confirm position has passed its records. A frame that is refused is refused alone and
leaves nothing behind. Invariant: no frame is acknowledged at or above the confirm position. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.api.access import PUBLISH
from broker.store.errors import CorruptLog, StoreError, StoreFull
from broker.store.store_message import Appended, StoreMessage
from remoting.protocol.append_body import KIND_BATCH, AppendEntry, decode_entries, encode_append_reply
from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.record import FLAG_FORMAT_SHIFT, tag_hash
from remoting.transport.contracts import Peer
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.api.context import Broker
    from broker.metrics import BrokerMetrics

Done = Callable[[Appended | None, int, Refused | None], None]
"""(where the whole append went, index of the caller's first message in it, None) or (…, …, what the sender is told)."""


class Appender:
    """Gathers messages of one loop turn into one append."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._messages: list[StoreMessage] = []
        self._waiting: list[tuple[int, Done]] = []

    def add(self, messages: list[StoreMessage], done: Done) -> None:
        """Append the messages at the end of this turn and call `done` when they are in the log and confirmed."""
        if not self._waiting:
            soon(self.flush)
        self._waiting.append((len(self._messages), done))
        self._messages += messages

    def flush(self) -> None:
        """Append what has gathered."""
        messages, self._messages = self._messages, []
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._append(messages, waiting)

    def _append(self, messages: list[StoreMessage], waiting: list[tuple[int, Done]]) -> None:
        metrics = self._broker.metrics
        try:
            appended = self._broker.store.append(messages)
        except LocalMisuse as error:
            if len(waiting) == 1:
                waiting[0][1](None, 0, refusal_of(metrics, error))
                return
            # One of the frames holds what the store cannot take; the others must not suffer for it.
            starts = [first for first, _done in waiting] + [len(messages)]
            for index, (first, done) in enumerate(waiting):
                self._append(messages[first : starts[index + 1]], [(0, done)])
            return
        except StoreError as error:
            for _first, done in waiting:
                done(None, 0, refusal_of(metrics, error))
            return
        metrics.messages_in.value += sum([message.count for message in messages])

        def confirmed(error: Exception | None) -> None:
            for first, done in waiting:
                done(appended, first, None if error is None else refusal_of(metrics, error))

        self._broker.store.when_confirmed(appended.end_position, confirmed)


def refusal_of(metrics: BrokerMetrics, error: Exception) -> Refused:
    """What a sender is told, and what is counted, when the store could not take or confirm its messages."""
    if isinstance(error, StoreFull):
        metrics.refused.child("disk_full").value += 1
        return Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the disk of this broker is full, nothing was stored: {error}",
        )
    if isinstance(error, CorruptLog):
        metrics.refused.child("damaged").value += 1
        return Refused(ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, StoreError):
        metrics.refused.child("log_failed").value += 1
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"the broker cannot write its log: {error}")
    metrics.refused.child("message").value += 1
    return Refused(ResponseCode.MESSAGE_ILLEGAL, str(error))


def entry_message(entry: AppendEntry) -> StoreMessage:
    """A store message from an append entry; queues are filled in by the placement."""
    return StoreMessage(
        (),
        entry.born_ms,
        entry.flags << FLAG_FORMAT_SHIFT if entry.kind == KIND_BATCH else entry.flags,
        tag_hash(entry.tags) if entry.tags_len else 0,
        entry.n_props,
        entry.topic_len,
        entry.keys_len,
        entry.tags_len,
        entry.props_len,
        entry.meta,
        entry.body,
        0,
        entry.count,
    )


def authorize_entries(broker: Broker, peer: Peer, command: Command, entries: list[AppendEntry]) -> None:
    """Refused unless the peer may publish to every topic of the entries."""
    if broker.authorizer.open:
        return
    for topic in {entry.mqtt_topic or entry.topic for entry in entries}:
        broker.authorizer.authorize(peer, command, PUBLISH, topic.decode("utf-8", "replace"))


def append_many(broker: Broker, peer: Peer, command: Command) -> None:
    """Handler of APPEND_MANY; the reply follows when the records are confirmed."""
    entries = decode_entries(command.body)
    authorize_entries(broker, peer, command, entries)
    place = broker.placement.place
    messages = [place(entry_message(entry), entry.kind, entry.queue_index) for entry in entries]

    def done(appended: Appended | None, first: int, refused: Refused | None) -> None:
        if command.is_oneway:
            return
        if refused is not None:
            peer.send(command.reply(refused.code, refused.remark))
            return
        assert appended is not None, "who is not refused was stored"
        offsets = appended.offsets
        placed = [(message.queues[0], offsets[first + index]) for index, message in enumerate(messages)]
        peer.send(command.reply(body=encode_append_reply(appended.end_position, placed)))

    broker.appender.add(messages, done)
