"""A master's ends of its replicas' connections: bytes and time in, bytes and ends of connections out.

    opened --Hello--> Leader.hello --Welcome--> Ready --> parts of the log as they are written, Ack back
                                        |-- Refusal: not the master, another group, no proof, expired

Connections are taken in every role and refused while this broker does not lead, so that a replica asks elsewhere at
once. Bytes are sent before they are flushed here: the disks work at the same time, and nothing is confirmed before
enough acknowledged it. Replicas that lack the same part of the log get the same one, its checksum taken once
(`Pieces`). Connections that say nothing, stay silent or are too many end here; `ha_server` moves the bytes only.
Invariant: what a store may confirm follows `Leader.limit` and nothing else while it leads; no connection outlives the
leadership it was made in; a piece is kept only until all that asked for it are served, because it keeps its log file
mapped. Pure: the world is a `StreamHost`, a `ServedLog` and a `StreamWire`, so the simulation runs this code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from broker.replication.epochs import Epochs, Extent
from broker.replication.frames import (
    FROM_REPLICA,
    NO_PROOF_GIVEN,
    NOT_MASTER,
    Ack,
    Decoder,
    Frame,
    Greeting,
    Hello,
    Leave,
    Ready,
    Refusal,
    Transfer,
    Welcome,
    encode_greeting,
    encode_refusal,
    encode_transfer_head,
    encode_welcome,
    prove,
    proved,
)
from broker.replication.host import ServedLog, StreamHost, StreamWire
from broker.replication.leader import Leader, catches_up, expired
from broker.store.append.raw_part import RawPart
from remoting.protocol.errors import LocalMisuse, RemoteViolation


class ReplicaStream:
    """One connection of a replica."""

    def __init__(self, streams: ReplicaStreams, number: int, wire: StreamWire, address: str, *, is_near: bool) -> None:
        """`is_near`: the replica runs on this machine."""
        self.number, self.address, self.is_near = number, address, is_near
        self.broker = 0
        self.access_key = ""
        self.since_ms = streams.now_ms()
        self.nonce = streams.host.nonce()
        self.secret: str | None = None
        self.is_replica = False
        """Whether it has been welcomed."""
        self.has_room = True
        """Whether the connection takes bytes now."""
        self.send = wire.send
        """Bytes of the log are not copied: a file that is dropped meanwhile stays mapped until they have left."""
        self._streams = streams
        self._wire = wire
        self._decoder = Decoder(FROM_REPLICA)
        self._reason = ""

    def received(self, data: bytes) -> None:
        """Frames of the replica; one that breaks the rules ends its connection."""
        has_acknowledged = False
        try:
            for frame in self._decoder.feed(data):
                if isinstance(frame, Ack):
                    self._streams.acknowledged(self, frame)
                    has_acknowledged = True
                else:
                    self._received(frame)
            if has_acknowledged:
                self._streams.advance(self)
        except RemoteViolation as violation:
            self.abort(violation.reason)

    def _received(self, frame: Frame) -> None:
        if isinstance(frame, Hello):
            self.hello(frame)
        elif isinstance(frame, Ready):
            refusal = self._streams.ready(self, frame)
            if refusal is not None:
                self.refuse(refusal)
        elif isinstance(frame, Leave):
            self._streams.left(self)

    def hello(self, hello: Hello) -> None:
        """What the replica is: welcome it, refuse it, or let it wait."""
        if self.is_replica:
            raise RemoteViolation("a second hello")
        self.broker, self.access_key = hello.broker, hello.access_key
        answer = self._streams.greet(self, hello)
        if answer is None:
            return
        if isinstance(answer, Refusal):
            self.refuse(answer)
            return
        self.is_replica = True
        self.send(encode_welcome(answer, lambda content: prove(self.secret, hello.nonce, content)))

    def refuse(self, refusal: Refusal) -> None:
        """Say why there is no stream, and close."""
        self._streams.refused += 1
        if refusal.reason == NO_PROOF_GIVEN:
            self._streams.admission.refused(self, refusal.remark)
        self._reason = refusal.remark
        self.send(encode_refusal(refusal))
        self._wire.close()

    def abort(self, reason: str) -> None:
        """Drop the connection without flushing; the first reason given is logged."""
        self._reason = self._reason or reason
        self._wire.abort()

    def resume(self) -> None:
        """The connection takes bytes again: send what has gathered."""
        self.has_room = True
        self._streams.refill(self, has_paused=True)  # a pause may have ended meanwhile

    def ended(self, why: str) -> None:
        """The connection has ended: take the replica out of the leader's table and log why it went."""
        self._streams.ended(self, self._reason or why)


class Piece:
    """One of them: the head of its frame, and the bytes of the log, which are those of the mapped file."""

    __slots__ = ("data", "head")

    def __init__(self, part: RawPart, epoch_start: int, confirm: int) -> None:
        self.data = part.data
        self.head = encode_transfer_head(
            Transfer(part.epoch, epoch_start, part.position, confirm, part.segment_base, part.segment_size, part.data)
        )


class Pieces:
    """Remembers the last one."""

    def __init__(self) -> None:
        self._asked = (-1, 0, 0, 0)
        self._last: Piece | None = None

    def at(self, store: ServedLog, epochs: Epochs, position: int, bytes_max: int) -> Piece | None:
        """Return what stands at `position`, None at the end. Raises LocalMisuse when it has expired."""
        confirm = store.confirm_position
        asked = (position, bytes_max, store.end_position, confirm)
        if self._last is None or asked != self._asked:
            part = store.replica.raw(position, bytes_max)
            if part is None:
                return None
            _, start = epochs.at(position) or (part.epoch, position)
            self._asked, self._last = asked, Piece(part, start, confirm)
        return self._last

    def forget(self) -> None:
        """Drop the piece that is kept in memory."""
        self._last = None


PAUSE_S = 0.001
"""How long little data waits for more of it under load: a transfer costs the master two calls of the system."""
CONNECTIONS_MAX = 64
"""Connections, including those without a HELLO yet; one more ends the oldest of these."""
REFUSALS_LOGGED_MS = 10_000
"""Refusals for lack of a proof are logged at most so often."""
HELLO_MS_MAX = 3_000
"""A connection without a HELLO for so long is closed."""


class ReplicaAdmission:
    """Who may have the log: replicas that prove an access key with the role for it, or that are on this machine."""

    def __init__(
        self, host: StreamHost, keys: Mapping[str, str], permitted: Callable[[str], bool], *, open_to_all: bool
    ) -> None:
        """`keys`: access key -> secret; `permitted`: whether a proved key, or none, may have this log."""
        self.unproven = 0
        """Those that proved no access key, or one without the role."""
        self._host = host
        self._keys = dict(keys)
        self._permitted = permitted
        self._open_to_all = open_to_all
        self._logged: tuple[int, int] | None = None
        """When a refusal was logged last, and how many there were then."""

    def judge(self, stream: ReplicaStream, hello: Hello, epoch: int) -> Refusal | None:
        """Why a replica may not have the log, None when it may; its stream then has the secret it has proved."""
        secret = self._keys.get(hello.access_key or "")
        trusted = not hello.access_key and (self._open_to_all or stream.is_near)
        if not trusted and (secret is None or not proved(secret, stream.nonce, hello.signed, hello.proof)):
            return Refusal(NO_PROOF_GIVEN, epoch, "replicas from elsewhere prove that they know an access key")
        if not self._permitted(hello.access_key):
            who = f"access key {hello.access_key!r}" if hello.access_key else "a peer without an access key"
            return Refusal(NO_PROOF_GIVEN, epoch, f"{who} has no role for this log")
        stream.secret = secret
        return None

    def refused(self, stream: ReplicaStream, reason: str) -> None:
        """Count refusals for lack of the right, and log some of them: such replicas retry."""
        now_ms = self._host.now_ms()
        self.unproven += 1
        if self._logged is None or now_ms - self._logged[0] >= REFUSALS_LOGGED_MS:
            times = self.unproven - (self._logged[1] if self._logged is not None else 0)
            self._logged = now_ms, self.unproven
            self._host.log.warning(
                "replica_refused", address=stream.address, key=stream.access_key, broker=stream.broker,
                reason=reason, times=times,
            )  # fmt: skip


@dataclass(slots=True)
class Leadership:
    """What is served while this broker leads: one leader's rules over one store."""

    leader: Leader
    store: ServedLog
    epochs: Epochs
    """A master's list changes only where retention forgets its beginning, and nothing is searched there."""
    limit: int | None
    """What the store may confirm, as it was given last."""
    is_pausing: bool = False
    """Whether the end of a pause is to come."""
    held_below: int = 0
    """Up to where what is written need not be looked at: what is sent later sends it."""
    is_bound: bool = False
    """Whether replicas, not the disk here, keep more from being confirmed."""

    def extent(self) -> Extent:
        """The log as it is now."""
        store = self.store
        return Extent(store.begin_position, store.end_position, Epochs(store.replica.epochs))

    def note_held(self) -> None:
        """Note up to where the log may grow without a look at the replicas, after each one at them.

        It holds until a replica acknowledges something, a pause ends, or one is ready.
        """
        settings, held = self.leader.settings, None
        for each in self.leader.replicas():
            if each.sent >= 0:
                waits = each.is_pausing or len(each.parts) >= settings.small_parts
                end = each.sent + settings.small_bytes if waits else 0
                held = end if held is None or end < held else held
        self.held_below = held or 0

    def confirm(self) -> None:
        """Let the store confirm what the rule of the group allows now."""
        kept = self.store.positions.kept
        limit = self.leader.limit(kept)
        self.is_bound = limit is not None and limit < kept
        if limit != self.limit:
            self.limit = limit
            self.store.positions.limit_confirm(limit)


class ReplicaStreams:
    """All connections of replicas to this broker."""

    def __init__(
        self,
        host: StreamHost,
        *,
        keys: Mapping[str, str],
        open_to_all: bool,
        superseded: Callable[[int], None],
        permitted: Callable[[str], bool] = lambda _key: True,
    ) -> None:
        """`keys`: access key -> secret of replicas from other machines; `permitted`: whether a proved key, or none, may
        have this log. `superseded` is called with a replica's epoch that is newer than ours."""
        self.host = host
        self.now_ms = host.now_ms
        self.open: dict[int, ReplicaStream] = {}
        """By number, in the order in which they came: the same events always have the same outcome."""
        self.sent_bytes = 0
        self.on_acknowledged: Callable[[float], object] = float
        """Called with the seconds from sending the end of the log to a replica until it has acknowledged it."""
        self.on_gone: Callable[[int], object] = _ignore
        """Called with the milliseconds after which a replica that has gone may count as absent."""
        self.on_caught_up: Callable[[], object] = _nothing
        """Called when a replica out of sync has all that is confirmed."""
        self.refused = 0
        """Connections that got a refusal, or were closed before their HELLO."""
        self.admission = ReplicaAdmission(host, keys, permitted, open_to_all=open_to_all)
        self._log = host.log
        self._superseded = superseded
        self._lead: Leadership | None = None
        self._early: dict[int, Hello] | None = None
        """Number of a stream -> what it said while this broker was about to lead; None while it is not."""
        self._numbers = 0
        self._pump_due = False
        self._pieces = Pieces()

    def lead(self, leader: Leader, store: ServedLog) -> None:
        """Serve replicas from this store from now on, first those that wait for it."""
        early = self._early or {}
        if self._early is None:
            self.step_down("a new epoch begins")
        self._early = None
        limit = leader.limit(store.positions.kept)
        self._lead = lead = Leadership(leader, store, Epochs(store.replica.epochs), limit)

        def written(end: int) -> None:
            if self._lead is lead and end >= lead.held_below:
                self._pump_soon()

        def kept(_end: int) -> None:
            if self._lead is lead and not lead.is_bound:
                lead.confirm()

        store.positions.on_written(written)
        store.positions.on_kept(kept)
        store.positions.limit_confirm(limit)
        for stream in [self.open[number] for number in early if number in self.open]:
            stream.hello(early[stream.number])

    def expect(self) -> None:
        """This broker is about to lead: replicas that ask meanwhile get their answer when it does."""
        self.step_down("a new epoch begins")
        self._early = {}

    def step_down(self, reason: str) -> None:
        """Stop serving: connections end, their state is dropped."""
        self._lead, self._early, self.on_gone, self.on_caught_up = None, None, _ignore, _nothing
        for stream in list(self.open.values()):
            stream.abort(reason)

    # -- connections --------------------------------------------------------------------------------------------------

    def opened(self, wire: StreamWire, address: str, *, is_near: bool) -> ReplicaStream | None:
        """A replica has connected: greet it. None when there are too many; its connection ends."""
        if not self._has_room():
            self.refused += 1
            wire.abort()
            return None
        self._numbers += 1
        stream = ReplicaStream(self, self._numbers, wire, address, is_near=is_near)
        self.open[stream.number] = stream
        stream.send(encode_greeting(Greeting(stream.nonce)))
        return stream

    def _has_room(self) -> bool:
        """Whether one more connection is accepted; of too many the oldest without a HELLO is closed."""
        strangers = [each for each in self.open.values() if not each.is_replica]
        if len(self.open) >= CONNECTIONS_MAX and strangers:
            oldest = strangers[0]
            self.refused += 1
            del self.open[oldest.number]
            oldest.abort("too many connections")
        return len(self.open) < CONNECTIONS_MAX

    def greet(self, stream: ReplicaStream, hello: Hello) -> Welcome | Refusal | None:
        """Who may have the log; None while that cannot be told yet."""
        lead = self._lead
        if lead is None and self._early is not None:
            if stream.number in self._early:
                raise RemoteViolation("a second hello")
            self._early[stream.number] = hello
            return None
        if lead is None:
            return Refusal(NOT_MASTER, 0, "this broker is not the master")
        leader = lead.leader
        refusal = self.admission.judge(stream, hello, leader.epoch)
        if refusal is not None:
            return refusal
        answer = leader.hello(stream.number, hello, lead.extent(), self.now_ms())
        if leader.superseded:
            self._superseded(leader.superseded)
        self.close_strangers("a newer connection of the same broker")
        if not isinstance(answer, Refusal):
            self._log.info("replica_came", address=stream.address, broker=hello.broker, end=hello.end)
        return answer

    def close_strangers(self, reason: str) -> None:
        """End the connections of replicas that the leader does not count any more; they may come again."""
        lead = self._lead
        for other in [each for each in self.open.values() if each.is_replica]:
            if lead is not None and not lead.leader.knows(other.number):
                other.abort(reason)

    def ready(self, stream: ReplicaStream, ready: Ready) -> Refusal | None:
        """The replica has cut its log. It may have come again because it refused what stands there."""
        lead = self._known()
        refusal = lead.leader.ready(stream.number, ready, lead.extent(), self.now_ms())
        if refusal is None:
            lead.store.replica.examine(ready.position)
            self.refill(stream)
        return refusal

    def acknowledged(self, stream: ReplicaStream, ack: Ack) -> None:
        """The replica's disk has more; `advance` follows."""
        waited_ms = self._known().leader.acknowledged(stream.number, ack, self.now_ms())
        if waited_ms is not None:
            self.on_acknowledged(waited_ms / 1_000)

    def refill(self, stream: ReplicaStream, *, has_paused: bool = False) -> None:
        """Send what the replica lacks, as much as it may get now."""
        self._pump(stream, has_paused=has_paused)
        self._pumped()

    def advance(self, stream: ReplicaStream) -> None:
        """Confirm what its acknowledgements allow, send what waited for them."""
        self.confirm()
        lead = self._lead
        is_out = lead is not None and stream.broker not in lead.leader.members.committed
        if lead is not None and is_out and catches_up(lead.leader, stream.number):
            self.on_caught_up()
        self.refill(stream)

    def ended(self, stream: ReplicaStream, reason: str) -> None:
        """The connection has ended; whose replica it was is logged with the reason."""
        self.open.pop(stream.number, None)
        if self._lead is not None and self._lead.leader.knows(stream.number):
            self._lead.leader.disconnected(stream.number, self.now_ms())
            self.on_gone(self._lead.leader.settings.absence_ms + 1)
        if stream.is_replica:
            self._log.info("replica_gone", address=stream.address, broker=stream.broker, reason=reason)

    def left(self, stream: ReplicaStream) -> None:
        """The replica's broker stops: it need not be waited for."""
        lead = self._known()
        if not lead.leader.knows(stream.number):
            raise RemoteViolation("leaves without having come")
        lead.leader.disconnected(stream.number, self.now_ms(), is_stopping=True)
        self.on_gone(0)
        stream.abort("its broker stops")

    def _known(self) -> Leadership:
        if self._lead is None:
            raise RemoteViolation("this broker is not the master any more")
        return self._lead

    # -- the stream ----------------------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Let the store confirm what the rule of the group allows now."""
        if self._lead is not None:
            self._lead.confirm()

    def _pump(self, stream: ReplicaStream, *, has_paused: bool = False) -> None:
        lead = self._lead
        while lead is not None and stream.has_room:
            leader, store = lead.leader, lead.store
            demand = leader.demand(stream.number, store.end_position, has_paused=has_paused)
            has_paused = False
            if demand is None:
                return
            try:
                piece = self._pieces.at(store, lead.epochs, *demand)
            except LocalMisuse:
                stream.refuse(expired(leader.epoch, lead.extent()))
                return
            if piece is None:
                return
            size = len(piece.data)
            stream.send(piece.head, piece.data)
            self.sent_bytes += size
            if leader.sent(stream.number, size, store.end_position, self.now_ms()) and not lead.is_pausing:
                lead.is_pausing = True
                self.host.later(PAUSE_S, partial(self._paused, lead))

    def _paused(self, lead: Leadership) -> None:
        lead.is_pausing = False
        if lead is self._lead:
            self._pump_all(has_paused=True)

    def _pump_soon(self) -> None:
        if not self._pump_due and self.open:
            self._pump_due = True
            self.host.soon(self._pump_all)

    def _pump_all(self, *, has_paused: bool = False) -> None:
        self._pump_due = False
        for stream in list(self.open.values()):
            if stream.is_replica:
                self._pump(stream, has_paused=has_paused)
        self._pumped()

    def _pumped(self) -> None:
        self._pieces.forget()
        if self._lead is not None:
            self._lead.note_held()

    def tick(self) -> None:
        """Count silence, several times a second."""
        now_ms = self.now_ms()
        for each in [each for each in self.open.values() if not each.is_replica]:
            if now_ms - each.since_ms >= HELLO_MS_MAX:
                self.refused += 1
                each.abort("it did not say who it is")
        if self._lead is not None:
            self._beat(self._lead.leader, self._lead.store, now_ms)

    def _beat(self, leader: Leader, store: ServedLog, now_ms: int) -> None:
        end = store.end_position
        for number in leader.heartbeats_due(now_ms):
            if number in self.open:
                beat = Transfer(leader.epoch, leader.epoch_start, end, store.confirm_position, end, 0, b"")
                self.open[number].send(encode_transfer_head(beat))
                leader.sent(number, 0, end, now_ms)
        for number in leader.silent(now_ms):
            if number in self.open:
                self.open[number].abort("it was silent for too long")


def _ignore(_absence_ms: int) -> None:
    """The callback while nobody keeps the set of replicas in sync."""


def _nothing() -> None:
    """The callback while nobody waits for replicas to catch up."""
