"""APPEND_MANY (9001): all publishes of one loop turn become one append to the log.

Frames that arrive in one turn are checked and placed one by one, gathered, and appended together when the turn is over;
each frame is answered when the confirm position has passed its records. A frame that is refused is refused alone and
leaves nothing behind. Invariant: no frame is acknowledged at or above the confirm position. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.meta import hot
from broker.publishing.placement import kind_of
from broker.requests.access import PUBLISH
from broker.requests.refusals import refusal_of
from broker.store.errors import StoreError
from broker.store.state.state_log import StateChange
from broker.store.store_message import Appended, StoreMessage
from remoting.native.contracts import RETAINED_MASK, RETAINED_VALUE
from remoting.protocol.bodies.append_body import SUBSCRIBERS_FIELD, encode_append_reply
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import client_id_of, image_views, iter_images, packet_id_of, wanted_queue
from remoting.protocol.records.record import FLAG_MQTT, RecordView, tag_hash
from remoting.transport.contracts import Peer
from remoting.transport.direct import Stored
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.metrics import BrokerMetrics
    from broker.publishing.feature import PublishingFeature as Broker
    from broker.requests.access import Authorizer
    from broker.retained.retained import RetainedQuota
    from broker.store.log_store import LogStore

Done = Callable[[Appended | None, int, Refused | None], None]
"""(where the whole append went, index of the caller's first message in it, None) or (…, …, what the sender is told)."""


class PublisherSession(Protocol):
    """What is asked of the session of a client that publishes with QoS 2."""

    @property
    def client_id(self) -> str:
        """Client id of the session's client."""

    def is_received(self, packet_id: int, /) -> bool:
        """Whether a publish of this id was taken and not released."""

    def receive(self, packet_ids: Iterable[int], /) -> list[StateChange]:
        """Note publishes taken; the records to write in the group of their messages."""

    def release(self, packet_ids: Iterable[int], /) -> list[StateChange]:
        """Forget publishes taken."""


class PublisherSessions(Protocol):
    """Where the sessions of publishers are found."""

    def owned(self, client_id: str, owner: object, /) -> PublisherSession | None:
        """The durable session of a client id while `owner` holds it."""


ExactIds = Sequence[tuple[PublisherSession, int]]
"""(session, packet id) of QoS 2 publishes."""
NO_EXACT_IDS: ExactIds = ()
NOT_STORED = (0, -1)
"""Place of an image that was left out."""
Waiting = tuple[int, Done, ExactIds]


class Appender:
    """Gathers messages of one loop turn into one append."""

    def __init__(self, store: LogStore, metrics: BrokerMetrics) -> None:
        self._metrics = metrics
        self._messages: list[StoreMessage] = []
        self._waiting: list[Waiting] = []
        self._has_exact = False
        self._store = store
        self._messages_in = metrics.messages_in

    def add(self, messages: list[StoreMessage], done: Done, exact: ExactIds = NO_EXACT_IDS) -> None:
        """Append the messages at the end of this turn and call `done` when they are in the log and confirmed.

        `exact`: QoS 2 packet ids among them; they are noted in the same group.
        """
        if not self._waiting:
            soon(self.flush)
        self._waiting.append((len(self._messages), done, exact))
        self._messages += messages
        if exact:
            self._has_exact = True

    def now(self, messages: list[StoreMessage], stored: Stored) -> None:
        """Append what has gathered and these messages behind it, at once; `stored` follows, never in this call."""
        if self._waiting:
            self.flush()
        try:
            end = self._store.append(messages).end_position
        except (LocalMisuse, StoreError) as error:
            soon(stored, refusal_of(self._metrics, error))
            return
        self._messages_in.value += len(messages)
        self._store.when_confirmed(end, partial(self._confirmed, stored))

    def _confirmed(self, stored: Stored, error: Exception | None) -> None:
        if error is None:
            stored(None)
        else:
            soon(stored, refusal_of(self._metrics, error))  # it may come while another append is being made

    def flush(self) -> None:
        """Append what has gathered."""
        messages, self._messages = self._messages, []
        waiting, self._waiting = self._waiting, []
        self._has_exact = False
        if waiting:
            self._append(messages, waiting)

    def flush_exact(self) -> None:
        """Append what has gathered if packet ids are among it, before somebody asks a session for its ids."""
        if self._has_exact:
            self.flush()

    def _append(self, messages: list[StoreMessage], waiting: list[Waiting]) -> None:
        metrics = self._metrics
        exact = [one for _first, _done, ids in waiting for one in ids]
        changes = _noted(exact) if exact else ()
        try:
            appended = self._store.append(messages, changes=changes)
        except LocalMisuse as error:
            _forgotten(exact)
            if len(waiting) == 1:
                waiting[0][1](None, 0, refusal_of(metrics, error))
                return
            # One of the frames holds what the store cannot take; the others must not suffer for it.
            starts = [first for first, _done, _ids in waiting] + [len(messages)]
            for index, (first, done, ids) in enumerate(waiting):
                self._append(messages[first : starts[index + 1]], [(0, done, ids)])
            return
        except StoreError as error:
            _forgotten(exact)
            for _first, done, _ids in waiting:
                done(None, 0, refusal_of(metrics, error))
            return
        metrics.messages_in.value += sum([message.count for message in messages])

        def confirmed(error: Exception | None) -> None:
            for first, done, _ids in waiting:
                done(appended, first, None if error is None else refusal_of(metrics, error))

        self._store.when_confirmed(appended.end_position, confirmed)


def _noted(exact: ExactIds) -> list[StateChange]:
    by_session: dict[str, tuple[PublisherSession, list[int]]] = {}
    for session, packet_id in exact:
        by_session.setdefault(session.client_id, (session, []))[1].append(packet_id)
    return [change for session, ids in by_session.values() for change in session.receive(ids)]


def _forgotten(exact: ExactIds) -> None:
    for session, packet_id in exact:
        session.release((packet_id,))


def image_message(image: RecordView) -> StoreMessage:
    """A store message from a checked image; queues are filled in by the placement."""
    n_props, topic_len, keys_len, tags_len, props_len = image.counts
    return StoreMessage(
        (),
        image.born_ms,
        image.flags,
        tag_hash(image.tags) if tags_len else 0,
        n_props,
        topic_len,
        keys_len,
        tags_len,
        props_len,
        bytes(image.meta),
        bytes(image.body),
        0,
        image.count,
    )


def authorize_body(authorizer: Authorizer, peer: Peer, command: Command) -> None:
    """Refused unless the peer may publish to every topic of the request's images."""
    if authorizer.open:
        return
    topics = hot.core.topics(command.body)
    if topics is None:
        topics = {image.mqtt_topic or image.topic for image in iter_images(command.body)}
    for topic in topics:
        authorizer.authorize(peer, command, PUBLISH, topic.decode("utf-8", "replace"))


def admit_retained(quota: RetainedQuota, metrics: BrokerMetrics, images: list[RecordView]) -> None:
    """Refused when there would be too many retained messages; counted."""
    wanted = [(one.mqtt_topic or b"", len(one.body)) for one in images if one.flags & RETAINED_MASK == RETAINED_VALUE]
    try:
        quota.admit(wanted)
    except Refused:
        metrics.refused.child("retained_quota").value += len(wanted)
        raise


def append_many(broker: Broker, peer: Peer, command: Command) -> None:
    """Handler of APPEND_MANY; the reply follows when the records are confirmed."""
    authorize_body(broker.authorizer, peer, command)
    plain = None if broker.retained_quota.active else hot.core.placed(command.body, broker.placement.way)
    if plain is not None:
        _append(broker, peer, command, plain, NO_EXACT_IDS, ())
        return
    images = image_views(command.body)
    if broker.retained_quota.active:
        admit_retained(broker.retained_quota, broker.metrics, images)
    place = broker.placement.place
    exact: ExactIds = NO_EXACT_IDS
    left_out: list[int] = []
    if any(packet_id_of(image) for image in images):
        exact, left_out = exact_ids(broker, peer, images)
    if len(left_out) == len(images) > 0:
        broker.appender.flush_exact()  # what is stored already may be a repetition of what gathers
        end = broker.store.end_position
        broker.answers.reply_at(end, peer, command.reply(body=encode_append_reply(end, [NOT_STORED] * len(images))))
        return
    wanted = list(images) if left_out else images
    for at in reversed(left_out):
        del wanted[at]
    messages = [place(image_message(image), kind_of(image.flags), wanted_queue(image)) for image in wanted]
    _append(broker, peer, command, messages, exact, left_out)


def _append(
    broker: Broker,
    peer: Peer,
    command: Command,
    messages: list[StoreMessage],
    exact: ExactIds,
    left_out: Sequence[int],
) -> None:
    """Append a request's messages with the others of this turn; answer where each went once it is confirmed."""
    unwanted = None
    if command.fields.get(SUBSCRIBERS_FIELD) == "1":
        unwanted = _unwanted(broker, messages, left_out)

    def done(appended: Appended | None, first: int, refused: Refused | None) -> None:
        if command.is_oneway:
            return
        if refused is not None:
            peer.send(command.reply(refused.code, refused.remark, refused.fields))
            return
        assert appended is not None, "who is not refused was stored"
        offsets = appended.offsets
        placed = [(message.queues[0], offsets[first + index]) for index, message in enumerate(messages)]
        for at in left_out:
            placed.insert(at, NOT_STORED)
        reply = command.reply(body=encode_append_reply(appended.end_position, placed, unwanted))
        if broker.publication.pending:
            broker.publication.when_published(_queue_topics(messages), partial(peer.send, reply))
        else:
            peer.send(reply)

    broker.appender.add(messages, done, exact)


def _unwanted(broker: Broker, messages: list[StoreMessage], left_out: Sequence[int]) -> list[bool]:
    """Whether nobody has subscribed to a message's topic, for every image of the request; unknown of those left out."""
    want = broker.subscribers.want
    unwanted = [not want(message) for message in messages]
    for at in left_out:
        unwanted.insert(at, False)
    return unwanted


def _queue_topics(messages: list[StoreMessage]) -> set[str]:
    """The topics of a producer's messages; none of MQTT's, whose acknowledgements must come in their order."""
    if any(message.flags & FLAG_MQTT for message in messages):
        return set()
    places = (slice(4 * message.n_props, 4 * message.n_props + message.topic_len) for message in messages)
    return {message.meta[place].decode("utf-8", "replace") for message, place in zip(messages, places, strict=True)}


def exact_ids(broker: Broker, peer: Peer, images: list[RecordView]) -> tuple[ExactIds, list[int]]:
    """The packet ids to note, and the images that are not to be stored.

    Left out is what is stored already, and what came from a proxy that has lost the session: its client sends it again
    through the proxy that has it, and was told nothing else meanwhile.
    """
    exact: list[tuple[PublisherSession, int]] = []
    left_out = []
    taken = set()
    for at, image in enumerate(images):
        noted = packet_id_of(image)
        if not noted:
            continue
        session = broker.sessions.owned(client_id_of(image).decode("utf-8", "replace"), peer)
        if session is None:
            broker.metrics.dropped.child("publish_fenced").value += 1
            left_out.append(at)
        elif session.is_received(noted) or (session.client_id, noted) in taken:
            broker.metrics.dropped.child("publish_repeated").value += 1
            left_out.append(at)
        else:
            taken.add((session.client_id, noted))
            exact.append((session, noted))
    return exact, left_out
