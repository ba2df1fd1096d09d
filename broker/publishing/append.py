"""APPEND_MANY (9001): all publishes of one loop turn become one append to the log.

Frames that arrive in one turn are checked and placed one by one, gathered, and appended together when the turn is over;
each frame is answered when the confirm position has passed its records. A frame that is refused is refused alone and
leaves nothing behind. Invariant: no frame is acknowledged at or above the confirm position. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.requests import refusal_of
from broker.store.errors import StoreError
from broker.store.placed import Appended, Placed
from broker.store.state.state_kinds import StateChange
from remoting.access.rights import PUBLISH
from remoting.native import core as native
from remoting.native.contracts import RETAINED_MASK, RETAINED_VALUE
from remoting.protocol.bodies.append_body import PLACES_FIELD, SUBSCRIBERS_FIELD, encode_append_reply
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import client_id_of, image_views, packet_id_of
from remoting.protocol.records.record import FLAG_MQTT, RecordView
from remoting.transport.contracts import Peer
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.metrics import BrokerMetrics
    from broker.publishing.feature import PublishingFeature as Broker
    from broker.retained.feature import RetainedQuota
    from broker.store.log_store import LogStore
    from remoting.server.authorizer import Authorizer

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
Waiting = tuple[int, Placed, Done, ExactIds]


class Appender:
    """Gathers messages of one loop turn into one append."""

    def __init__(self, store: LogStore, metrics: BrokerMetrics) -> None:
        self._metrics = metrics
        self._count = 0
        """Images that have gathered."""
        self._waiting: list[Waiting] = []
        self._has_exact = False
        self._work: Callable[[], None] | None = None
        """What stands between the messages that have gathered and the next ones."""
        self._store = store
        self._messages_in = metrics.messages_in

    def add(self, placed: Placed, done: Done, exact: ExactIds = NO_EXACT_IDS) -> None:
        """Append the messages at the end of this turn and call `done` when they are in the log and confirmed.

        `exact`: QoS 2 packet ids among them; they are noted in the same group.
        """
        if self._work is not None:
            self.catch_up()
        if not self._waiting:
            soon(self.flush)
        self._waiting.append((self._count, placed, done, exact))
        self._count += len(placed.queues)
        if exact:
            self._has_exact = True

    def behind(self, work: Callable[[], None]) -> None:
        """Do this in this turn, behind the messages that have gathered and ahead of those that come later."""
        assert self._work is None, "one at a time"
        self._work = work
        soon(self.catch_up)

    def catch_up(self) -> None:
        """Do now what was to be done behind the messages that have gathered."""
        work, self._work = self._work, None
        if work is not None:
            self.flush()
            work()

    def flush(self) -> None:
        """Append what has gathered."""
        waiting, self._waiting = self._waiting, []
        self._has_exact, self._count = False, 0
        if waiting:
            self._append(waiting)

    def flush_exact(self) -> None:
        """Append what has gathered if packet ids are among it, before somebody asks a session for its ids."""
        if self._has_exact:
            self.flush()

    def _append(self, waiting: list[Waiting]) -> None:
        metrics = self._metrics
        exact = [one for _first, _placed, _done, ids in waiting for one in ids]
        changes = _noted(exact) if exact else ()
        try:
            appended = self._store.append(*[placed for _, placed, _, _ in waiting], changes=changes)
        except LocalMisuse as error:
            _forgotten(exact)
            if len(waiting) == 1:
                waiting[0][2](None, 0, refusal_of(metrics, error))
                return
            # One of the frames holds what the store cannot take; the others must not suffer for it.
            for _first, placed, done, ids in waiting:
                self._append([(0, placed, done, ids)])
            return
        except StoreError as error:
            _forgotten(exact)
            for _first, _placed, done, _ids in waiting:
                done(None, 0, refusal_of(metrics, error))
            return
        metrics.messages_in.value += sum([placed.count for _, placed, _, _ in waiting])
        self._store.when_confirmed(appended.end_position, partial(self._confirmed, appended, waiting))

    def _confirmed(self, appended: Appended, waiting: list[Waiting], error: Exception | None) -> None:
        for first, _placed, done, _ids in waiting:
            done(appended, first, None if error is None else refusal_of(self._metrics, error))


def _noted(exact: ExactIds) -> list[StateChange]:
    by_session: dict[str, tuple[PublisherSession, list[int]]] = {}
    for session, packet_id in exact:
        by_session.setdefault(session.client_id, (session, []))[1].append(packet_id)
    return [change for session, ids in by_session.values() for change in session.receive(ids)]


def _forgotten(exact: ExactIds) -> None:
    for session, packet_id in exact:
        session.release((packet_id,))


def authorize_body(authorizer: Authorizer, peer: Peer, command: Command) -> None:
    """Refused unless the peer may publish to every topic of the request's images."""
    if authorizer.trusts(peer):
        return
    for topic in native.core.topics(command.body):
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
    if broker.retained_quota.active:
        admit_retained(broker.retained_quota, broker.metrics, image_views(command.body))
    noted = PacketIds(broker, peer)
    placed = broker.placement.placed(command.body, admit=noted.admit)
    if noted.left_out and not placed.queues:
        broker.appender.flush_exact()  # what is stored already may be a repetition of what gathers
        end = broker.store.end_position
        body = encode_append_reply(end, [NOT_STORED] * len(noted.left_out))
        broker.answers.reply_at(end, peer, command.reply(body=body))
        return
    _append(broker, peer, command, placed, noted)


def _append(broker: Broker, peer: Peer, command: Command, placed: Placed, noted: PacketIds) -> None:
    """Append a request's messages with the others of this turn; answer where each went once it is confirmed."""
    fields = command.fields
    unwanted = _unwanted(broker, placed, noted.left_out) if fields.get(SUBSCRIBERS_FIELD) == "1" else None
    names_places = unwanted is not None or fields.get(PLACES_FIELD) != "0"

    def done(appended: Appended | None, first: int, refused: Refused | None) -> None:
        if command.is_oneway:
            return
        if refused is not None:
            peer.send(command.reply(refused.code, refused.remark, refused.fields))
            return
        assert appended is not None, "who is not refused was stored"
        places = _places(appended, first, placed, noted.left_out) if names_places else ()
        reply = command.reply(body=encode_append_reply(appended.end_position, places, unwanted))
        if broker.publication.pending:
            broker.publication.when_published(_queue_topics(placed), partial(peer.send, reply))
        else:
            peer.send(reply)

    broker.appender.add(placed, done, noted.ids)


def _places(appended: Appended, first: int, placed: Placed, left_out: Sequence[int]) -> list[tuple[int, int]]:
    """(parent queue, offset) of every image of a request whose first message is number `first` of the append."""
    offsets = appended.offsets
    places = [(queues[0], offsets[first + index]) for index, queues in enumerate(placed.queues)]
    for at in left_out:
        places.insert(at, NOT_STORED)
    return places


def _unwanted(broker: Broker, placed: Placed, left_out: Sequence[int]) -> list[bool]:
    """Whether nobody has subscribed to a message's topic, for every image of the request; unknown of those left out."""
    want = broker.subscribers.want
    unwanted = [not want(image, queues) for image, queues in placed]
    for at in left_out:
        unwanted.insert(at, False)
    return unwanted


def _queue_topics(placed: Placed) -> set[str]:
    """The topics of a producer's messages; none of MQTT's, whose acknowledgements must come in their order."""
    topics = set()
    for image, _queues in placed:
        if image.flags & FLAG_MQTT:
            return set()
        topics.add(image.topic.decode("utf-8", "replace"))
    return topics


class PacketIds:
    """The packet ids of a request's QoS 2 publishes: those to note, and the images that are not to be stored.

    Left out is what is stored already, and what came from a proxy that has lost the session: its client sends it again
    through the proxy that has it, and was told nothing else meanwhile.
    """

    def __init__(self, broker: Broker, peer: Peer) -> None:
        self._broker = broker
        self._peer = peer
        self._taken: set[tuple[str, int]] = set()
        self.ids: list[tuple[PublisherSession, int]] = []
        """(session, packet id) to note with the messages."""
        self.left_out: list[int] = []
        """Numbers of the images that are not stored."""

    def admit(self, number: int, image: RecordView) -> bool:
        """Whether an image with a packet id is to be stored."""
        broker, noted = self._broker, packet_id_of(image)
        session = broker.sessions.owned(client_id_of(image).decode("utf-8", "replace"), self._peer)
        if session is None:
            broker.metrics.dropped.child("publish_fenced").value += 1
        elif session.is_received(noted) or (session.client_id, noted) in self._taken:
            broker.metrics.dropped.child("publish_repeated").value += 1
        else:
            self._taken.add((session.client_id, noted))
            self.ids.append((session, noted))
            return True
        self.left_out.append(number)
        return False
