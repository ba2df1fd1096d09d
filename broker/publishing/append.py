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
from remoting.access import visibility
from remoting.access.rights import PUBLISH
from remoting.native import core as native
from remoting.native.contracts import RETAINED_MASK, RETAINED_VALUE
from remoting.protocol.bodies.append_body import PLACES_FIELD, SUBSCRIBERS_FIELD, encode_append_reply
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import client_id_of, image_views, packet_id_of
from remoting.protocol.records.record import FLAG_MQTT, RecordView
from remoting.transport.contracts import Peer
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.metrics import AppendTimes, BrokerMetrics
    from broker.publishing.placement import Placement
    from broker.requests import RequestTools
    from broker.retained.feature import RetainedQuota
    from broker.store.log_store import LogStore
    from broker.subscriptions.filters import Subscribers
    from broker.topics.topics import Publication
    from remoting.server.authorizer import Authorizer

Done = Callable[[Appended | None, int, Refused | None], None]
"""(result of the whole append, index of the caller's first message in it, None) or (…, …, error for the sender)."""


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

    def __init__(self, store: LogStore, metrics: BrokerMetrics, times: AppendTimes | None = None) -> None:
        self._metrics = metrics
        self._count = 0
        """Images that have gathered."""
        self._waiting: list[Waiting] = []
        self._has_exact = False
        self._work: Callable[[], None] | None = None
        """What stands between the messages that have gathered and the next ones."""
        self._store = store
        self._messages_in = metrics.messages_in
        self._times = times

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
        """Append the gathered messages if any have packet ids, before a session's ids are requested."""
        if self._has_exact:
            self.flush()

    def _append(self, waiting: list[Waiting]) -> None:
        metrics = self._metrics
        parts: list[Placed] = []
        exact: list[tuple[PublisherSession, int]] = []
        count = 0
        for _first, placed, _done, ids in waiting:
            parts.append(placed)
            count += placed.count
            exact += ids
        times = self._times
        started_ns = 0 if times is None else times.monotonic_ns()
        try:
            if exact:
                appended = self._store.append(*parts, changes=_noted(exact))
            else:
                appended = self._store.append(*parts)
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
        self._messages_in.value += count
        written_ns = 0
        if times is not None:
            written_ns = times.monotonic_ns()
            times.write_s((written_ns - started_ns) / 1e9)
        written = _Written(metrics, appended, waiting, written_ns, times)
        self._store.when_confirmed(appended.end_position, written.confirmed)


class _Written:
    """One append of the log, until it is confirmed."""

    __slots__ = ("_appended", "_metrics", "_times", "_waiting", "_written_ns")

    def __init__(
        self,
        metrics: BrokerMetrics,
        appended: Appended,
        waiting: list[Waiting],
        written_ns: int,
        times: AppendTimes | None,
    ) -> None:
        self._metrics = metrics
        self._appended = appended
        self._waiting = waiting
        self._written_ns = written_ns
        self._times = times

    def confirmed(self, error: Exception | None) -> None:
        """Report the result to all senders of its messages."""
        if error is None and self._times is not None:
            self._times.confirm_s((self._times.monotonic_ns() - self._written_ns) / 1e9)
        for first, _placed, done, _ids in self._waiting:
            done(self._appended, first, None if error is None else refusal_of(self._metrics, error))


def _noted(exact: ExactIds) -> list[StateChange]:
    by_session: dict[str, tuple[PublisherSession, list[int]]] = {}
    for session, packet_id in exact:
        by_session.setdefault(session.client_id, (session, []))[1].append(packet_id)
    return [change for session, ids in by_session.values() for change in session.receive(ids)]


def _forgotten(exact: ExactIds) -> None:
    for session, packet_id in exact:
        session.release((packet_id,))


def authorize_body(authorizer: Authorizer, peer: Peer, command: Command) -> None:
    """Refused unless the peer may publish wherever the request's images would be visible."""
    if authorizer.trusts(peer, command):
        return
    for topic in native.core.topics(command.body):
        authorizer.authorize(peer, command, PUBLISH, topic.decode("utf-8", "replace"))
    if visibility.names_queues(command.body):
        for resource in visibility.of_light_queues(command.body):
            authorizer.authorize(peer, command, PUBLISH, resource)


def admit_retained(quota: RetainedQuota, metrics: BrokerMetrics, images: list[RecordView]) -> None:
    """Refused when there would be too many retained messages; counted."""
    wanted = [(one.mqtt_topic or b"", len(one.body)) for one in images if one.flags & RETAINED_MASK == RETAINED_VALUE]
    try:
        quota.admit(wanted)
    except Refused:
        metrics.refused.child("retained_quota").value += len(wanted)
        raise


class AppendRequests:
    """The handler of APPEND_MANY, and what it needs of the other features."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        placement: Placement,
        appender: Appender,
        sessions: PublisherSessions,
        quota: RetainedQuota,
        subscribers: Subscribers,
        publication: Publication,
    ) -> None:
        self.metrics = tools.metrics
        self.sessions = sessions
        self.publication = publication
        self._store = tools.store
        self._authorizer = tools.authorizer
        self._answers = tools.answers
        self._placement = placement
        self._placing = placement.choice.placing
        self._appender = appender
        self._quota = quota
        self._subscribers = subscribers

    def handle(self, peer: Peer, command: Command) -> None:
        """Append the request's messages with the others of this turn; the reply follows when they are confirmed."""
        authorize_body(self._authorizer, peer, command)
        if self._quota.active:
            admit_retained(self._quota, self.metrics, image_views(command.body))
        noted = PacketIds(self, peer)
        self._placing.request = peer, command  # as `Placing.by`, without its calls
        try:
            placed = self._placement.placed(command.body, False, noted.admit)
        finally:
            self._placing.request = None
        if noted.lost is not None:
            remark = f"the session of {noted.lost!r} is not held by this connection"
            raise Refused(ResponseCode.ILLEGAL_OPERATION, remark)
        if noted.left_out and not placed.queues:
            self._appender.flush_exact()  # what is stored already may be a repetition of what gathers
            end = self._store.end_position
            body = encode_append_reply(end, [NOT_STORED] * len(noted.left_out))
            self._answers.reply_at(end, peer, command.reply(body=body))
            return
        request = _AppendRequest(self, peer, command, placed, noted.left_out)
        if command.fields.get(SUBSCRIBERS_FIELD) == "1":
            request.unwanted = _unwanted(self._subscribers, placed, noted.left_out)
        self._appender.add(placed, request.done, noted.ids)


class _AppendRequest:
    """One APPEND_MANY between its append and its answer, which says where each message went if that is asked."""

    __slots__ = ("_command", "_left_out", "_peer", "_placed", "_requests", "unwanted")

    def __init__(
        self, requests: AppendRequests, peer: Peer, command: Command, placed: Placed, left_out: Sequence[int]
    ) -> None:
        self._requests = requests
        self._peer = peer
        self._command = command
        self._placed = placed
        self._left_out = left_out
        self.unwanted: list[bool] | None = None
        """Whether each message has no subscriber, if requested."""

    def done(self, appended: Appended | None, first: int, refused: Refused | None) -> None:
        """Answer the request: stored, or refused as a whole (see `Done`)."""
        command = self._command
        if command.is_oneway:
            return
        if refused is not None:
            self._peer.send(command.reply(refused.code, refused.remark, refused.fields))
            return
        assert appended is not None, "who is not refused was stored"
        places: Sequence[tuple[int, int]] = ()
        if self.unwanted is not None or command.fields.get(PLACES_FIELD) != "0":
            places = _places(appended, first, self._placed, self._left_out)
        reply = command.reply(0, None, None, encode_append_reply(appended.end_position, places, self.unwanted))
        publication = self._requests.publication
        if publication.pending:
            publication.when_published(_queue_topics(self._placed), partial(self._peer.send, reply))
        else:
            self._peer.send(reply)


def _places(appended: Appended, first: int, placed: Placed, left_out: Sequence[int]) -> list[tuple[int, int]]:
    """(parent queue, offset) of every image of a request whose first message is number `first` of the append."""
    offsets = appended.offsets
    places = [(queues[0], offsets[first + index]) for index, queues in enumerate(placed.queues)]
    for at in left_out:
        places.insert(at, NOT_STORED)
    return places


def _unwanted(subscribers: Subscribers, placed: Placed, left_out: Sequence[int]) -> list[bool]:
    """Whether a message's topic has no subscriber, for every image of the request; unknown for those left out."""
    want = subscribers.want
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

    Left out is what is stored already. A request with a publish of a session that the proxy does not have is refused as
    a whole: an answer would acknowledge what is not stored.
    """

    __slots__ = ("_peer", "_requests", "_taken", "ids", "left_out", "lost")

    def __init__(self, requests: AppendRequests, peer: Peer) -> None:
        self._requests = requests
        self._peer = peer
        self._taken: set[tuple[str, int]] | None = None
        self.ids: list[tuple[PublisherSession, int]] = []
        """(session, packet id) to note with the messages."""
        self.left_out: list[int] = []
        """Numbers of the images that are not stored."""
        self.lost: str | None = None
        """A client id whose session the proxy does not have; None if there is none."""

    def admit(self, number: int, image: RecordView) -> bool:
        """Whether an image with a packet id is to be stored."""
        requests, noted = self._requests, packet_id_of(image)
        client_id = client_id_of(image).decode("utf-8", "replace")
        session = requests.sessions.owned(client_id, self._peer)
        if self._taken is None:
            self._taken = set()
        if session is None:
            requests.metrics.dropped.child("publish_fenced").value += 1
            self.lost = client_id
        elif session.is_received(noted) or (session.client_id, noted) in self._taken:
            requests.metrics.dropped.child("publish_repeated").value += 1
        else:
            self._taken.add((session.client_id, noted))
            self.ids.append((session, noted))
            return True
        self.left_out.append(number)
        return False
