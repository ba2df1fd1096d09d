"""SHARED_TAKE, SHARED_SETTLE (9050, 9051) and the push SHARED_GIVEN (9052): each message to one member of its group.

A proxy reports for each of its members how many messages it can take, what its client has acknowledged and what it
gives back; the group (`broker.shared.groups`) decides whose turn it is, and the records are pushed, once per proxy and
turn. A member ends with its session's connection: its messages go to others at once. A proxy whose output is full gets
nothing until there is room. Invariant: what is given is confirmed, and with one member at most. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from broker.requests import Feature, RequestTools
from broker.shared.groups import SharedGroup, ShareMember
from broker.store.errors import UnreadableOffsets
from broker.store.index.reader import ReadResult
from remoting.protocol.bodies.session_body import (
    SHARED_BIT,
    SessionFlow,
    SharedMember,
    SharedSettle,
    SharedTake,
    SharedTaken,
    decode,
    encode,
    encode_given,
    is_shared_place,
)
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.contracts import Handler, Peer
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.shared.groups import SharedGroups
    from broker.topics.topics import VisibleQueues

TURN_MESSAGES_MAX = 512
"""Messages one group hands out before the loop has its turn."""
READ_BYTES_MAX = 1024 * 1024
"""Bytes of records read at once for one group."""
PUSH_BYTES_MAX = 2 * 1024 * 1024
"""Bytes of records in one SHARED_GIVEN, but at least one record."""
SESSION_ENDED = "shared_session_ended"
"""Reason of drops: QoS 2 messages that end with the session they were being sent to."""
RETRY_SECONDS = 0.02
"""Pause before a proxy whose output was full is tried again."""


class MemberSession(Protocol):
    """What a member needs of its session."""

    @property
    def epoch(self) -> int:
        """Epoch of the session's ownership."""

    @property
    def owner(self) -> object | None:
        """The proxy that owns it."""

    @property
    def subscriptions(self) -> Mapping[str, object]:
        """Its subscriptions by whole filter; only their presence is checked."""


class MemberSessions(Protocol):
    """Where the sessions of members are found."""

    def get(self, client_id: str, /) -> MemberSession | None:
        """The session of a client id."""

    def owned(self, client_id: str, owner: object, /) -> MemberSession | None:
        """The same if that proxy owns it."""


class _Seat:
    """One member of one group: where its messages go."""

    __slots__ = ("client_id", "group", "handle", "member", "name", "peer")

    def __init__(self, peer: Peer, handle: int, client_id: str, name: str, group: SharedGroup) -> None:
        self.peer = peer
        self.handle = handle
        self.client_id = client_id
        self.name = name
        self.group = group
        self.member: ShareMember


class _ProxyLine:
    """One proxy's connection: its members by handle, and the records for its next push."""

    __slots__ = ("blocked", "given", "seats", "size_bytes")

    def __init__(self) -> None:
        self.seats: dict[int, _Seat] = {}
        self.given: list[tuple[int, int, memoryview]] = []
        self.size_bytes = 0
        self.blocked = False


class SharedFeature(Feature):
    """Hands messages of shared subscriptions to the proxies of their members."""

    def __init__(
        self, tools: RequestTools, *, groups: SharedGroups, sessions: MemberSessions, visible: VisibleQueues
    ) -> None:
        self._tools = tools
        self.groups = groups
        self._sessions = sessions
        self._visible = visible
        self._lines: dict[Peer, _ProxyLine] = {}
        self._by_client: dict[str, dict[_Seat, None]] = {}
        self._due: dict[SharedGroup, None] = {}
        self._waiting_since_ms: dict[SharedGroup, int] = {}
        self._save_timer: asyncio.TimerHandle | None = None
        groups.on_release(self._released)
        tools.store.positions.on_advance(self.advanced, groups.queues)

    # ---- requests

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.SHARED_TAKE: self.take, RequestCode.SHARED_SETTLE: self.settle}

    def take(self, peer: Peer, command: Command) -> Command:
        """SHARED_TAKE: members begin, or continue after a restart of their proxy or of the broker."""
        joined = [self._join(peer, wanted) for wanted in decode(SharedTake, command.body).members]
        return command.reply(body=encode(SharedTaken(joined)))

    def settle(self, peer: Peer, command: Command) -> None:
        """SHARED_SETTLE: what members have acknowledged, give back, and can take."""
        line = self._lines.get(peer)
        unknown = 0
        for report in decode(SharedSettle, command.body).members:
            seat = line.seats.get(report.handle) if line is not None else None
            if seat is None:
                unknown += len(report.done)
                continue
            member, group = seat.member, seat.group
            group.settle(member, report.done, report.back, report.sent, report.refused)
            self._count_returned("not_authorized", len(report.refused))
            self._count_returned("not_delivered", len(report.back))
            if report.credit:
                group.grant(member, report.credit)
            if member.leaving and not member.held:
                self._unseat(seat)
            self._later(group)
        # A member that was taken over or timed out may still acknowledge; other members have those messages by now.
        self._tools.metrics.dropped.child("shared_settle_late").value += unknown

    def noted(self, peer: Peer, flow: SessionFlow) -> None:
        """SESSION_FLOW: messages that a durable session has noted are its own and are settled in their groups."""
        session = self._sessions.owned(flow.client_id, peer)
        if session is None or session.epoch != flow.epoch:
            return
        for _packet_id, place, offset in flow.reserved:
            if is_shared_place(place):
                self._settle_noted(flow.client_id, place & ~SHARED_BIT, offset)

    def _settle_noted(self, client_id: str, queue_id: int, offset: int) -> None:
        for seat in self._by_client.get(client_id, ()):
            if seat.group.queue_id == queue_id and offset in seat.member.held:
                seat.group.settle(seat.member, [offset], [])
                self._later(seat.group)
                return

    def _join(self, peer: Peer, wanted: SharedMember) -> bool:
        session = self._sessions.get(wanted.client_id)
        group = self.groups.get(wanted.filter)
        if session is None or session.owner is not peer or session.epoch != wanted.epoch or group is None:
            return False
        if wanted.filter not in session.subscriptions:
            return False
        for known in [seat for seat in self._by_client.get(wanted.client_id, ()) if seat.name == wanted.filter]:
            self._leave(known, "joined_again")
        line = self._lines.get(peer)
        if line is None:
            line = self._lines[peer] = _ProxyLine()
            peer.on_close(lambda _reason: self._peer_closed(peer))
        seat = _Seat(peer, wanted.handle, wanted.client_id, wanted.filter, group)
        seat.member = group.join(seat, wanted.held, self._visible.end(group.queue_id))
        line.seats[wanted.handle] = seat
        self._by_client.setdefault(wanted.client_id, {})[seat] = None
        group.suspend(seat.member, line.blocked)
        group.grant(seat.member, wanted.credit)
        self._later(group)
        return True

    # ---- members that go

    def away(self, client_id: str) -> None:
        """The connection of this client has ended: its members' messages go to others."""
        for seat in list(self._by_client.get(client_id, ())):
            self._leave(seat, "member_left")

    def _released(self, name: str, client_id: str) -> None:
        for seat in list(self._by_client.get(client_id, ())):
            if seat.name == name:
                seat.group.retire(seat.member)
                if not seat.member.held:
                    self._unseat(seat)
                self._later(seat.group)

    def _peer_closed(self, peer: Peer) -> None:
        line = self._lines.pop(peer, None)
        if line is not None:
            for seat in list(line.seats.values()):
                self._leave(seat, "proxy_lost")

    def _leave(self, seat: _Seat, reason: str) -> None:
        held = len(seat.member.held)
        lost = seat.group.leave(seat.member)
        self._count_returned(reason, held - lost)
        self._count_lost(seat.group, SESSION_ENDED, lost)
        self._unseat(seat)
        self._later(seat.group)

    def _unseat(self, seat: _Seat) -> None:
        line = self._lines.get(seat.peer)
        if line is not None and line.seats.get(seat.handle) is seat:
            del line.seats[seat.handle]
        seats = self._by_client.get(seat.client_id)
        if seats is not None:
            seats.pop(seat, None)
            if not seats:
                del self._by_client[seat.client_id]

    def _count_returned(self, reason: str, count: int) -> None:
        if count:
            self._tools.metrics.shared_returned.child(reason).value += count

    # ---- handing out

    def advanced(self, queue_ids: Sequence[int]) -> None:
        """The confirmed ends of these queues have moved."""
        of_queue = self.groups.of_queue
        for queue_id in queue_ids:
            for group in of_queue(queue_id):
                self._later(group)

    def maintain(self, now_ms: int) -> dict[str, int]:
        """End waits for claims that are over, and groups without a subscription."""
        groups = self.groups
        self._save()  # progress without a distribution
        awaiting = [group for _, group in groups.items() if group.offsets.awaiting]
        waiting = {group: self._waiting_since_ms.get(group, now_ms) for group in awaiting}
        self._waiting_since_ms = waiting
        for group, since_ms in waiting.items():
            if now_ms - since_ms >= self._tools.config.shared_wait_ms:
                group.offsets.call_off()
                self._later(group)
        return {"shared_ended": groups.expire(now_ms)}

    def _later(self, group: SharedGroup) -> None:
        if not self._due:
            soon(self._run)
        self._due[group] = None

    def _run(self) -> None:
        due, self._due = self._due, {}
        more = [group for group in due if self._distribute(group)]
        for peer, line in self._lines.items():
            if line.given:
                self._push(peer, line)
        if more:
            asyncio.get_running_loop().call_soon(self._go_on, more)
        if self._save_timer is None:
            interval_s = self._tools.config.shared_commit_interval_ms / 1_000
            self._save_timer = asyncio.get_running_loop().call_later(interval_s, self._timed_save)

    def _go_on(self, groups: list[SharedGroup]) -> None:
        for group in groups:
            self._later(group)

    def _timed_save(self) -> None:
        self._save_timer = None
        self._save()

    def _save(self) -> None:
        if self._tools.store.refusal is None:
            self.groups.save()

    def _distribute(self, group: SharedGroup) -> bool:
        """Hand out offsets as far as members can take them; True when there may be more."""
        if self._visible.hidden(group.queue_id):
            return False
        low, end = self._tools.store.reading.bounds(group.queue_id)
        self._count_lost(group, "shared_retention", group.offsets.expire(low))
        left = TURN_MESSAGES_MAX
        while left > 0:
            offsets = group.offsets.upcoming(end, group.capacity(left))
            if not offsets:
                return False
            handed = self._hand_out(group, _run_of(offsets))
            if handed == 0:
                return False
            left -= handed
        return True

    def _hand_out(self, group: SharedGroup, offsets: list[int]) -> int:
        """Hand out some of these consecutive offsets; returns how many were handed out or skipped."""
        first, count = offsets[0], len(offsets)
        try:
            found = self._tools.store.reading.read(group.queue_id, first, count, READ_BYTES_MAX)
        except UnreadableOffsets as error:
            return self._skip(group, [offset for offset in offsets if offset < error.next_offset], "shared_unreadable")
        expired = [offset for offset in offsets if offset < found.first_offset]
        if expired:
            return self._skip(group, expired, "shared_retention")
        if found.bases is not None:  # batches have no MQTT topics
            return self._skip(group, _not_mqtt(found, offsets), "shared_not_mqtt")
        for index, record in enumerate(found.records):
            if group.all_refused(first + index):
                self._skip(group, [first + index], "shared_not_authorized")
                continue
            member = group.hand_out(first + index, len(record))
            if member is None:
                return index
            self._give(member, first + index, record)
        return len(found.records)

    def _give(self, member: ShareMember, offset: int, record: memoryview) -> None:
        seat = member.owner
        assert isinstance(seat, _Seat)
        line = self._lines[seat.peer]
        line.given.append((seat.handle, offset, record))
        line.size_bytes += len(record)
        if line.size_bytes >= PUSH_BYTES_MAX:
            self._push(seat.peer, line)

    def _push(self, peer: Peer, line: _ProxyLine) -> None:
        given, line.given, line.size_bytes = line.given, [], 0
        metrics = self._tools.metrics
        metrics.shared_given.value += len(given)
        metrics.messages_out.value += len(given)
        peer.send(Command(RequestCode.SHARED_GIVEN, flag=FLAG_ONEWAY, body=encode_given(given)))
        if not peer.writable and not line.blocked:
            self._block(peer, line, blocked=True)

    def _block(self, peer: Peer, line: _ProxyLine, *, blocked: bool) -> None:
        """Suspend or resume the members of a proxy whose output is full."""
        line.blocked = blocked
        for seat in line.seats.values():
            seat.group.suspend(seat.member, blocked)
            if not blocked:
                self._later(seat.group)
        if blocked:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._retry, peer)

    def _retry(self, peer: Peer) -> None:
        line = self._lines.get(peer)
        if line is not None:
            self._block(peer, line, blocked=not peer.writable)

    def _skip(self, group: SharedGroup, offsets: list[int], reason: str) -> int:
        for offset in offsets:
            group.offsets.skip(offset)
        self._count_lost(group, reason, len(offsets))
        return len(offsets)

    def _count_lost(self, group: SharedGroup, reason: str, count: int) -> None:
        if count:
            self._tools.metrics.dropped.child(reason).value += count
            self._tools.log.warning("shared_messages_lost", queue_id=group.queue_id, reason=reason, count=count)


def _run_of(offsets: list[int]) -> list[int]:
    """The leading offsets that are consecutive."""
    for index, offset in enumerate(offsets):
        if offset != offsets[0] + index:
            return offsets[:index]
    return offsets


def _not_mqtt(found: ReadResult, offsets: list[int]) -> list[int]:
    """The offsets covered by the records read; at least one, so that the group always makes progress."""
    return [offset for offset in offsets if offset < found.next_offset] or offsets[:1]
