"""A broker in memory for the proxy's tests: the real request bodies and records, without durability.

Everything is confirmed at once unless `holding` keeps appends back; `refuse` answers a code with refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from remoting import inprocess
from remoting.protocol.bodies.append_body import SUBSCRIBERS_FIELD, decode_append_reply, encode_append_reply
from remoting.protocol.bodies.follow_body import decode_follow, encode_follow_reply, encode_notify
from remoting.protocol.bodies.operating_body import ProxyAnswered, ProxyAsked, ProxyPresent
from remoting.protocol.bodies.pull_body import (
    QueueRecords,
    decode_multi_pull,
    decode_records_at,
    encode_multi_pull_reply,
)
from remoting.protocol.bodies.session_body import (
    PHASE_PUBREL,
    FilterRequest,
    FlowBatch,
    FlowNoted,
    InflightEntry,
    SessionClose,
    SessionFenced,
    SessionFlow,
    SessionOpen,
    SessionOpened,
    SessionSubscription,
    SharedMember,
    SharedSettle,
    SharedSettled,
    SharedTake,
    SharedTaken,
    Subscribed,
    SubscribeRequest,
    SubscribeResult,
    Unsubscribed,
    UnsubscribeRequest,
    WillDue,
    WillSpec,
    WillVerdict,
    decode,
    decode_offsets,
    encode,
    encode_given,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records import names
from remoting.protocol.records.image import client_id_of, encode_mqtt_image, image_views, packet_id_of, stamp
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.topics import inner_filter, is_wildcard, matches
from remoting.transport.contracts import Connection, Peer
from tests.unit.mqtt_proxy.fake_session import FakeSession


class FakeBroker:
    """Answers the proxy's requests from dictionaries."""

    def __init__(self) -> None:
        self.queues: dict[bytes, int] = {}
        self.records: dict[int, list[bytes]] = {}
        self.base: dict[int, int] = {}
        self.damaged: dict[int, set[int]] = {}
        self.by_position: dict[int, bytes] = {}
        self.retained: dict[bytes, int] = {}
        self.sessions: dict[str, FakeSession] = {}
        self.wills: dict[tuple[str, int], WillSpec] = {}
        self.judges: list[Peer] = []
        self.opened: list[SessionOpen] = []
        self.closed: list[SessionClose] = []
        self.verdicts: list[WillVerdict] = []
        self.flows: list[SessionFlow] = []
        self.followed: dict[Peer, set[int]] = {}
        self.end_position = 64
        self.epochs = 0
        self.codes: list[int] = []
        self.pulled: list[list[tuple[int, int]]] = []
        self.refuse: dict[int, list[Refused]] = {}
        self.refused_topic: bytes | None = None
        self.room = 1_000_000
        """Records in one answer about log positions."""
        self.subscriptions_max, self.expiry_s_max = 1_000, 0xFFFF_FFFF
        self.unwanted: set[bytes] = set()  # topics that have no subscriber
        self.holding = False
        self.status = b"{}"
        self.appended: list[RecordView] = []
        self.held: list[tuple[Peer, Command]] = []
        self.members: list[tuple[Peer, SharedMember]] = []
        self.settled: list[SharedSettled] = []
        self.wished: list[FilterRequest] = []
        self.connections: list[Connection] = []
        self.reachable = True
        self.parked: frozenset[str] = frozenset()
        """Client ids whose SESSION_OPEN is kept back."""
        self.proxies: list[ProxyPresent] = []
        self.proxy_peer: Peer | None = None
        self.proxy_answers: list[ProxyAnswered] = []

    async def connect(self) -> Connection:
        """A new in-process connection to this broker, unless it is out of reach."""
        if not self.reachable:
            raise ConnectionRefusedError("out of reach")
        connection = inprocess.connect(self.handle)
        self.connections.append(connection)
        return connection

    def handle(self, peer: Peer, command: Command) -> Command | None:
        """Answer one request."""
        self.codes.append(command.code)
        refusals = self.refuse.get(command.code)
        if refusals:
            refusal = refusals.pop(0)
            return command.reply(refusal.code, refusal.remark)
        if command.code == RequestCode.APPEND_MANY and self.holding:
            self.held.append((peer, command))
            return None
        if command.code == RequestCode.SESSION_OPEN and decode(SessionOpen, command.body).client_id in self.parked:
            self.held.append((peer, command))
            return None
        try:
            body = self._answers[command.code](self, peer, command.body)
            if command.code == RequestCode.APPEND_MANY and SUBSCRIBERS_FIELD in command.fields:
                unwanted = [entry.mqtt_topic in self.unwanted for entry in image_views(command.body)]
                body = encode_append_reply(*decode_append_reply(body), unwanted)
            return command.reply(body=body)
        except Refused as refusal:
            return command.reply(refusal.code, refusal.remark)

    def release(self) -> None:
        """Answer the requests kept back."""
        self.holding, self.parked = False, frozenset()
        held, self.held = self.held, []
        for peer, command in held:
            reply = self.handle(peer, command)
            assert reply is not None
            peer.send(reply)

    def queue(self, name: bytes) -> int:
        """The id of a queue, created on first use."""
        if name not in self.queues:
            queue_id = self.queues[name] = len(self.queues) + 1
            self.records[queue_id] = []
            self.base[queue_id] = 0
        return self.queues[name]

    def end(self, queue_id: int) -> int:
        """Confirmed end of a queue."""
        return self.base[queue_id] + len(self.records[queue_id])

    def trim(self, queue_id: int, count: int) -> None:
        """Forget the first records of a queue, as retention does."""
        del self.records[queue_id][:count]
        self.base[queue_id] += count

    def _append(self, _peer: Peer, body: bytes) -> bytes:
        entries = image_views(body)
        if any(entry.mqtt_topic == self.refused_topic for entry in entries):
            raise Refused(16, "no permission")
        self.appended += entries
        placed = [self._place(entry) if self._is_new(entry) else (0, -1) for entry in entries]
        self._notify()
        return encode_append_reply(self.end_position, placed)

    def _is_new(self, entry: RecordView) -> bool:
        """Whether a message is to be stored; a QoS 2 id of a session is remembered."""
        if not packet_id_of(entry):
            return True
        session = self.sessions[client_id_of(entry).decode()]
        known = packet_id_of(entry) in session.received
        session.received.add(packet_id_of(entry))
        return not known

    def _place(self, entry: RecordView) -> tuple[int, int]:
        topic = entry.mqtt_topic
        assert topic is not None
        wanted = [entry.topic + b"-0", names.light_queue_name(topic)]
        wanted += [
            name for name in self.queues if name.startswith(b"filter:") and matches(name[7:].decode(), topic.decode())
        ]
        dispatch = [(queue_id, self.end(queue_id)) for queue_id in map(self.queue, wanted)]
        record = stamp(entry, epoch=1, position=self.end_position, store_ms=entry.born_ms, dispatch=dispatch)
        self.by_position[self.end_position] = record
        if entry.flags & 4:
            self.retained[topic] = self.end_position
            if not entry.body:
                del self.retained[topic]
        self.end_position += len(record)
        for queue_id, _ in dispatch:
            self.records[queue_id].append(record)
        return dispatch[0]

    def _notify(self) -> None:
        for peer, queues in self.followed.items():
            news = [(queue_id, self.end(queue_id)) for queue_id in sorted(queues)]
            if news:
                peer.send(Command(RequestCode.NOTIFY, flag=2, body=encode_notify(news)))

    def _status(self, _peer: Peer, _body: bytes) -> bytes:
        return self.status

    def _follow(self, peer: Peer, body: bytes) -> bytes:
        add, remove = decode_follow(body)
        self.followed.setdefault(peer, set()).update(add)
        self.followed[peer].difference_update(remove)
        return encode_follow_reply([self.end(queue_id) for queue_id in add])

    def _pull(self, _peer: Peer, body: bytes) -> bytes:
        wants = decode_multi_pull(body)
        self.pulled.append([(want.queue_id, want.offset) for want in wants])
        return encode_multi_pull_reply([self._pull_one(w.queue_id, w.offset, w.max_count, w.max_bytes) for w in wants])

    def _pull_one(self, queue_id: int, offset: int, max_count: int, max_bytes: int) -> QueueRecords:
        if queue_id not in self.records:
            return QueueRecords(queue_id, 2, 0, 0, 0, 0)
        base, end = self.base[queue_id], self.end(queue_id)
        if offset > end:
            return QueueRecords(queue_id, 3, end, end, base, end)
        if offset in self.damaged.get(queue_id, ()):
            behind = next(at for at in range(offset, end + 1) if at not in self.damaged[queue_id])
            return QueueRecords(queue_id, 4, behind, behind, base, end)
        status = 1 if offset < base else 0
        first = max(offset, base)
        taken: list[bytes] = []
        for record in self.records[queue_id][first - base : first - base + max_count]:
            if taken and sum(map(len, taken)) + len(record) > max_bytes:
                break
            taken.append(record)
        return QueueRecords(queue_id, status, first, first + len(taken), base, end, taken)

    def _records_at(self, _peer: Peer, body: bytes) -> bytes:
        there = [self.by_position[at] for at in decode_records_at(body) if at in self.by_position]
        return b"".join(there[: self.room])

    def _offsets(self, peer: Peer, body: bytes) -> bytes:
        for key, queue_id, offset in decode_offsets(body):
            session = self.sessions.get(key.decode())
            if session is not None and session.owner is peer:
                session.offsets[queue_id] = max(session.offsets.get(queue_id, 0), offset)
        return b""

    def _open(self, peer: Peer, body: bytes) -> bytes:
        request = decode(SessionOpen, body)
        known = self.sessions.get(request.client_id)
        if known is not None and known.owner is not None:
            fenced = SessionFenced(request.client_id, known.epoch)
            known.owner.send(Command(RequestCode.SESSION_FENCED, flag=2, body=encode(fenced)))
        present = known is not None and known.durable and not request.clean
        previous_epoch = known.epoch if present and known is not None else 0
        self.epochs += 1
        if present and known is not None:
            known.epoch, known.owner = self.epochs, peer
            session = known
        else:
            session = self.sessions[request.client_id] = FakeSession(self.epochs, request.expiry_s > 0, peer)
        self.opened.append(request)
        self.wills.pop((request.client_id, request.continues), None)
        if request.will is not None:
            self.wills[request.client_id, session.epoch] = request.will
        stored = [
            SessionSubscription(
                topic_filter, qos, queue_id, session.offsets[queue_id], 0, 0, 0, session.exact_below.get(queue_id, 0)
            )
            for topic_filter, (qos, queue_id) in session.subscriptions.items()
        ]
        inflight = session.inflight + [InflightEntry(one, *place, qos=2) for one, place in session.exact.items()]
        received, expiry_s = sorted(session.received), min(request.expiry_s, self.expiry_s_max)
        return encode(SessionOpened(present, session.epoch, stored, inflight, previous_epoch, received, expiry_s))

    def _flow(self, _peer: Peer, body: bytes) -> bytes:
        batch = decode(FlowBatch, body)
        self.flows += batch.flows
        fenced = []
        for number, flow in enumerate(batch.flows):
            session = self.sessions[flow.client_id]
            if session.epoch != flow.epoch:
                fenced.append(number)
                continue
            session.received -= set(flow.released)
            for packet_id in flow.completed:
                session.exact.pop(packet_id, None)
            for packet_id in flow.received:
                session.exact[packet_id] = (*session.exact[packet_id][:2], PHASE_PUBREL)
            for packet_id, queue_id, offset in flow.reserved:
                session.exact[packet_id] = (queue_id, offset, 0)
                session.exact_below[queue_id] = max(session.exact_below.get(queue_id, 0), offset + 1)
        return encode(FlowNoted(fenced)) if fenced else b""

    def will_due(self, client_id: str, epoch: int, will: WillSpec) -> None:
        """Send a will that is due to the proxy that connected last."""
        self.wills[client_id, epoch] = will
        body = encode(WillDue(client_id, epoch, will.topic, will.qos, will.retain, will.author))
        self.judges[-1].send(Command(RequestCode.WILL_DUE, flag=2, body=body))

    def _watch(self, peer: Peer, _body: bytes) -> bytes:
        self.judges.append(peer)
        return b""

    def _verdict(self, peer: Peer, body: bytes) -> bytes:
        verdict = decode(WillVerdict, body)
        self.verdicts.append(verdict)
        will = self.wills.pop((verdict.client_id, verdict.epoch))
        if verdict.allowed:
            flags = will.qos | (4 if will.retain else 0)
            entry = encode_mqtt_image(will.topic, will.payload, flags, 0, verdict.client_id.encode())
            self._append(peer, b"".join([entry]))
        return b""

    def _session(self, client_id: str, epoch: int) -> FakeSession:
        session = self.sessions.get(client_id)
        if session is None or session.epoch != epoch or session.owner is None:
            raise Refused(604, "fenced")
        return session

    def _close(self, _peer: Peer, body: bytes) -> bytes:
        request = decode(SessionClose, body)
        self.closed.append(request)
        will = self.wills.pop((request.client_id, request.epoch), None)
        if will is not None and request.will:
            self.will_due(request.client_id, request.epoch, will)
        session = self._session(request.client_id, request.epoch)
        session.owner = None
        session.inflight = request.inflight
        for queue_id, offset in request.offsets:
            session.offsets[queue_id] = max(session.offsets.get(queue_id, 0), offset)
        if not request.durable:
            del self.sessions[request.client_id]
        return b""

    def _subscribe(self, _peer: Peer, body: bytes) -> bytes:
        request = decode(SubscribeRequest, body)
        self.wished += [one for one in request.filters if one.history is not None]
        session = self._session(request.client_id, request.epoch)
        results = [
            self._subscribe_one(session, topic_filter, qos)
            for topic_filter, qos in ((one.filter, one.qos) for one in request.filters)
        ]
        for one, result in zip(request.filters, results, strict=True):
            if one.history is not None:
                result.live, result.offset = result.offset, max(0, result.offset - (one.history.last or 0))
        retained: list[tuple[int, list[int]]] = []
        for index, topic_filter in enumerate([one.filter for one in request.filters]):
            found = [at for topic, at in self.retained.items() if matches(topic_filter, topic.decode())]
            if found:
                retained.append((index, found))
        return encode(Subscribed(results, retained))

    def _subscribe_one(self, session: FakeSession, topic_filter: str, qos: int) -> SubscribeResult:
        if topic_filter not in session.subscriptions and len(session.subscriptions) >= self.subscriptions_max:
            return SubscribeResult(0x97, 0, 0)
        inner = inner_filter(topic_filter)
        encoded = inner.encode()
        name = b"filter:" + encoded if is_wildcard(inner) else names.light_queue_name(encoded)
        queue_id = self.queue(name)
        session.subscriptions[topic_filter] = (qos, queue_id)
        offset = session.offsets.setdefault(queue_id, self.end(queue_id))
        return SubscribeResult(qos, queue_id, offset)

    def _unsubscribe(self, _peer: Peer, body: bytes) -> bytes:
        request = decode(UnsubscribeRequest, body)
        session = self._session(request.client_id, request.epoch)
        found: Sequence[object] = [session.subscriptions.pop(topic_filter, None) for topic_filter in request.filters]
        return encode(Unsubscribed([one is not None for one in found]))

    def _take(self, peer: Peer, body: bytes) -> bytes:
        members = decode(SharedTake, body).members
        self.members += [(peer, member) for member in members]
        return encode(SharedTaken([True] * len(members)))

    def _settle(self, _peer: Peer, body: bytes) -> bytes:
        self.settled += decode(SharedSettle, body).members
        return b""

    def give(self, offset: int, record: memoryview) -> None:
        """Give a message to the member that joined last."""
        peer, member = self.members[-1]
        body = encode_given([(member.handle, offset, record)])
        peer.send(Command(RequestCode.SHARED_GIVEN, flag=FLAG_ONEWAY, body=body))

    def _proxy_present(self, peer: Peer, body: bytes) -> bytes:
        self.proxies.append(decode(ProxyPresent, body))
        self.proxy_peer = peer
        return b""

    def _proxy_answered(self, _peer: Peer, body: bytes) -> bytes:
        self.proxy_answers.append(decode(ProxyAnswered, body))
        return b""

    def ask_proxy(self, asked: ProxyAsked) -> None:
        """Put a question to the proxy that showed itself last."""
        assert self.proxy_peer is not None
        self.proxy_peer.send(Command(RequestCode.PROXY_ASKED, flag=FLAG_ONEWAY, body=encode(asked)))

    _answers: ClassVar[dict[int, Callable[[FakeBroker, Peer, bytes], bytes]]] = {
        RequestCode.APPEND_MANY: _append,
        RequestCode.FOLLOW: _follow,
        RequestCode.CLUSTER_STATUS: _status,
        RequestCode.MULTI_PULL: _pull,
        RequestCode.RECORDS_AT: _records_at,
        RequestCode.APPEND_OFFSETS: _offsets,
        RequestCode.SESSION_OPEN: _open,
        RequestCode.SESSION_FLOW: _flow,
        RequestCode.WILL_WATCH: _watch,
        RequestCode.WILL_VERDICT: _verdict,
        RequestCode.SESSION_CLOSE: _close,
        RequestCode.SHARED_TAKE: _take,
        RequestCode.SHARED_SETTLE: _settle,
        RequestCode.SUBSCRIBE: _subscribe,
        RequestCode.UNSUBSCRIBE: _unsubscribe,
        RequestCode.PROXY_PRESENT: _proxy_present,
        RequestCode.PROXY_ANSWERED: _proxy_answered,
    }
