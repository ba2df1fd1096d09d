"""WILL_WATCH, WILL_DUE, WILL_VERDICT (9015, 9017, 9018): a will that is due becomes a message, once.

    due -> WILL_DUE to one proxy -> WILL_VERDICT -> message and removal in one append -> the proxy's reply

A proxy registers with WILL_WATCH as a judge of wills. The proxy of the will's client is the first to get WILL_DUE,
because it may still be sending what that client published before; without a verdict in `will_verdict_ms` the next proxy
is tried. While there is no proxy, or the disk is full, a will stays due. A denied or impossible will is counted and
logged. Invariant: no will is published without a verdict, none twice. Loop thread only.

Wills: the message of each connection that is published if it ends without a normal DISCONNECT.

    HELD --closed abnormally, or proxy lost--> WAITING --delay over, or the session ends--> DUE --> removed
      |                                           |                                          (in one group
      +--normal DISCONNECT: removed               +--the session connected again: removed     with its message)

```
WILL   key = client id, 0x00, epoch of the connection u64 LE     value = msgpack array of WillRecord
```
Rules (MQTT 5 §3.1.2.5, §3.1.3.2.2, §3.14.2.1): the delay counts from the loss of the connection and ends at the latest
with the session; a session that continues within it cancels the will, one that starts clean does not. A lost proxy has
`grace_ms` to reconnect, and so has every connection when the broker starts: the proxy's next SESSION_OPEN names the
epoch it continues, and the will is stored again under the new one. A proxy that did not get the answer names the same
epoch once more, so a will is also found by the epoch it was continued from. A removed will is never stored again, so it
is published at most once; it is removed in one group with its message, so it is published at least once.

Invariant: every will in memory is a WILL record, except those a full disk refused. Loop thread only.
"""

from __future__ import annotations

import asyncio
import heapq
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests import Feature, RequestTools
from broker.store.errors import StoreError
from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.access.rights import SESSION
from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.bodies.session_body import WillDue, WillSpec, WillVerdict
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_RETAIN, MQTT_TOPIC_KEY
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.publishing.append import Appender
    from broker.publishing.placement import Placement
    from broker.store.log_store import LogStore
    from runtime.clock import Clock


_EPOCH = struct.Struct("<Q")
_STALE_ENTRIES_MIN = 1_024
"""Heap entries below which stale ones are not swept."""


class WillRecord(msgspec.Struct, array_like=True):
    """A will in the log. `due_ms`: 0 while it is held."""

    expiry_s: int
    due_ms: int
    spec: WillSpec
    continues: int = 0
    """The epoch under which the same connection held it before; 0 for its first."""


@dataclass(slots=True, eq=False)
class StoredWill:
    """One will; `value` is its record, `due_ms` 0 while its connection is open."""

    client_id: str
    epoch: int
    value: bytes
    due_ms: int = 0
    continues: int = 0
    is_asked: bool = False
    """Whether it was due once: then only a verdict, or its own connection continued, ends it."""
    proxy: Any = None
    """The proxy of its connection, while that is known."""

    @property
    def key(self) -> bytes:
        """Key of its record."""
        return self.client_id.encode() + b"\x00" + _EPOCH.pack(self.epoch)

    def record(self) -> WillRecord:
        """The will as it was stored, decoded."""
        return _decode(self.value)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WillRecord).decode


class Wills:
    """All wills of this broker group, and which of them are due."""

    def __init__(self, store: LogStore, *, grace_ms: int, now_ms: int) -> None:
        self._grace_ms = grace_ms
        self._by_client: dict[str, list[StoredWill]] = {}
        self._heap: list[tuple[int, int, StoredWill]] = []
        self._entries = 0
        self._count = 0
        for key, (value, _position) in list(store.state.items(state_kinds.WILL)):
            self._load(bytes(key), value, now_ms)

    def __len__(self) -> int:
        return self._count

    def of(self, client_id: str) -> list[StoredWill]:
        """The wills of a client: at most one held, and those that wait or are due."""
        return self._by_client.get(client_id, [])

    def get(self, client_id: str, epoch: int) -> StoredWill | None:
        """The will of one connection."""
        return next((will for will in self.of(client_id) if will.epoch == epoch), None)

    # ---- connections; each call returns the records to write

    def opened(
        self,
        client_id: str,
        epoch: int,
        record: WillRecord | None,
        now_ms: int,
        *,
        continues: int,
        present: bool,
        proxy: object = None,
    ) -> list[StateChange]:
        """A connection has opened the session; `present`: it is the same session as before."""
        changes = []
        earlier = self._continued(client_id, continues) if continues else None
        if earlier is not None:
            changes.append(self.remove(earlier))
        for will in list(self.of(client_id)):
            changes += self._superseded(will, now_ms, present=present)
        if record is None or (continues and earlier is None):
            return changes
        record.continues = continues
        held = StoredWill(client_id, epoch, _encode(record), continues=continues, proxy=proxy)
        self.keep(held)
        changes.append(StateChange(state_kinds.WILL, held.key, held.value))
        return changes

    def closed(self, client_id: str, epoch: int, now_ms: int, *, is_due: bool, expiry_s: int) -> list[StateChange]:
        """The connection has ended; `is_due` unless normally. The session is kept for another `expiry_s`."""
        will = self.get(client_id, epoch)
        if will is None or will.due_ms:
            return []
        if not is_due:
            return [self.remove(will)]
        record = will.record()
        wait_s = min(record.spec.delay_s, expiry_s)
        self._wait(will, now_ms + wait_s * 1_000)
        if not wait_s:
            return []
        record.due_ms = will.due_ms
        will.value = _encode(record)
        return [StateChange(state_kinds.WILL, will.key, will.value)]

    def proxy_lost(self, client_id: str, epoch: int, now_ms: int) -> None:
        """The connection's proxy is lost, and may reconnect."""
        will = self.get(client_id, epoch)
        if will is not None and not will.due_ms:
            self._wait_with_grace(will, now_ms)

    def session_over(self, client_id: str, now_ms: int) -> None:
        """The session has been ended: no will of its connections waits longer."""
        for will in self.of(client_id):
            if not will.is_asked:
                self._wait(will, now_ms)

    # ---- what is due

    def next_due_ms(self) -> int | None:
        """When `due` has something at the earliest; None: nothing waits."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[StoredWill]:
        """The wills that are due now, each once; `later` schedules one again."""
        while self._heap and self._heap[0][0] <= now_ms:
            entry = heapq.heappop(self._heap)
            if self._is_live(entry):
                entry[2].is_asked = True
                yield entry[2]

    def later(self, will: StoredWill, at_ms: int) -> None:
        """Make a will due again at that time, unless it was removed."""
        if self.get(will.client_id, will.epoch) is will:
            self._wait(will, at_ms)

    def remove(self, will: StoredWill) -> StateChange:
        """Remove a will; returns the deletion to write, in one group with its message if it is published."""
        left = [other for other in self.of(will.client_id) if other is not will]
        if left:
            self._by_client[will.client_id] = left
        else:
            del self._by_client[will.client_id]
        self._count -= 1
        return StateChange(state_kinds.WILL, will.key, None)

    def keep(self, will: StoredWill) -> None:
        """Add a will; also undoes a `remove` that could not be written."""
        self._by_client.setdefault(will.client_id, []).append(will)
        self._count += 1

    # ---- inner parts

    def _continued(self, client_id: str, continues: int) -> StoredWill | None:
        """The will a connection left under that epoch, or under the next one if it never learned of that."""
        return next((will for will in self.of(client_id) if continues in (will.epoch, will.continues)), None)

    def _load(self, key: bytes, value: bytes, now_ms: int) -> None:
        client_id, epoch = key[:-9].decode(), _EPOCH.unpack_from(key, len(key) - 8)[0]
        record = _decode(value)
        will = StoredWill(client_id, epoch, value, continues=record.continues)
        self.keep(will)
        due_ms = record.due_ms
        if due_ms:
            self._wait(will, max(due_ms, now_ms))
        else:
            self._wait_with_grace(will, now_ms)

    def _superseded(self, will: StoredWill, now_ms: int, *, present: bool) -> list[StateChange]:
        """Another connection has opened the session: cancel or schedule a will that is held or waits."""
        if will.is_asked:
            return []
        if present and will.record().spec.delay_s:
            return [self.remove(will)]
        self._wait(will, now_ms)
        return []

    def _wait_with_grace(self, will: StoredWill, now_ms: int) -> None:
        record = will.record()
        self._wait(will, now_ms + max(self._grace_ms, min(record.spec.delay_s, record.expiry_s) * 1_000))

    def _wait(self, will: StoredWill, due_ms: int) -> None:
        will.due_ms = due_ms
        self._entries += 1
        heapq.heappush(self._heap, (due_ms, self._entries, will))
        if len(self._heap) > max(_STALE_ENTRIES_MIN, 2 * self._count):
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)

    def _is_live(self, entry: tuple[int, int, StoredWill]) -> bool:
        will = entry[2]
        return will.due_ms == entry[0] and self.get(will.client_id, will.epoch) is will


ASKED_PER_RUN_MAX = 1_024
"""Wills sent to proxies in one run; the others follow after `RUN_PAUSE_MS`, so that many do not block the loop."""
RUN_PAUSE_MS = 10


class WillVerdicts:
    """Sends wills that are due to proxies for a verdict."""

    def __init__(self, wills: Wills, clock: Clock, *, verdict_ms: int) -> None:
        """`verdict_ms`: how long a proxy may take before another one is tried."""
        self._wills = wills
        self._clock = clock
        self._verdict_ms = verdict_ms
        self._judges: dict[Peer, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def watch(self, peer: Peer) -> None:
        """Register a proxy as a judge until its connection ends."""
        if peer not in self._judges:
            self._judges[peer] = None
            peer.on_close(lambda _reason: self._judges.pop(peer, None))
            self.run()

    def run(self) -> None:
        """Request verdicts for the wills that are due now, and run again when the next one is."""
        wills = self._wills
        if wills.next_due_ms() is None or not self._judges:
            return
        now_ms = self._clock.now_ms()
        for asked, will in enumerate(wills.due(now_ms), 1):
            self._ask(will)
            wills.later(will, now_ms + self._verdict_ms)
            if asked >= ASKED_PER_RUN_MAX:
                break
        due_ms = wills.next_due_ms()
        if due_ms is not None:
            self._come_back(max(due_ms, now_ms + RUN_PAUSE_MS), now_ms)

    def _ask(self, will: StoredWill) -> None:
        spec = will.record().spec
        judge = will.proxy if will.proxy in self._judges else next(iter(self._judges))
        will.proxy = None  # a proxy that does not answer is not tried first again
        self._judges[judge] = self._judges.pop(judge)
        body = encode(WillDue(will.client_id, will.epoch, spec.topic, spec.qos, spec.retain, spec.author))
        judge.send(Command(Code.WILL_DUE, flag=FLAG_ONEWAY, body=body))

    def _come_back(self, at_ms: int, now_ms: int) -> None:
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later((at_ms - now_ms) / 1_000, self._awake)

    def _awake(self) -> None:
        self._timer = None
        self.run()

    def stop(self) -> None:
        """Send nothing more."""
        self._judges.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WillFeature(Feature):
    """Wills of connections, from SESSION_OPEN to their message."""

    def __init__(self, tools: RequestTools, wills: Wills, *, appender: Appender, placement: Placement) -> None:
        self.table = wills
        self.verdicts = WillVerdicts(wills, tools.clock, verdict_ms=tools.config.will_verdict_ms)
        self._tools = tools
        self._appender = appender
        self._placement = placement

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: WILL_WATCH, WILL_VERDICT."""
        return {Code.WILL_WATCH: self.will_watch, Code.WILL_VERDICT: self.will_verdict}

    def stop(self) -> None:
        """Send wills to no proxy any more."""
        self.verdicts.stop()

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Request verdicts for wills that became due with the end of their sessions."""
        del now_ms
        self.verdicts.run()
        return {}

    def will_watch(self, peer: Peer, command: Command) -> Command:
        """WILL_WATCH: register a proxy as a judge of wills."""
        self._tools.authorizer.authorize(peer, command, SESSION, "wills")
        self.verdicts.watch(peer)
        return command.reply()

    def will_verdict(self, peer: Peer, command: Command) -> None:
        """WILL_VERDICT: publish or drop a will; a verdict about one that no longer exists changes nothing."""
        verdict = decode(WillVerdict, command.body)
        self._tools.authorizer.authorize(peer, command, SESSION, verdict.client_id)
        will = self.table.get(verdict.client_id, verdict.epoch)
        if will is not None and will.is_asked:
            self._appender.flush()
            if verdict.allowed:
                self._publish(will)
            else:
                self._drop(will, "denied", verdict.reason)
        self._tools.answers.reply_at(self._tools.store.end_position, peer, command.reply())

    def _publish(self, will: StoredWill) -> None:
        try:
            message = self._message(will)
        except StoreError:
            raise
        except LightMQError as error:
            self._drop(will, "refused", str(error))
            return
        wills = self.table
        removal = wills.remove(will)
        try:
            self._tools.store.append(message, changes=[removal])
        except LocalMisuse as error:
            wills.keep(will)
            self._drop(will, "refused", str(error))
        except StoreError:
            wills.keep(will)
            raise
        else:
            self._tools.metrics.messages_in.value += 1
            self._tools.metrics.wills.child("published").value += 1

    def _drop(self, will: StoredWill, outcome: str, reason: str) -> None:
        self._tools.store.append_state([self.table.remove(will)])
        self._tools.metrics.wills.child(outcome).value += 1
        self._tools.log.warning("will_not_published", client_id=will.client_id, outcome=outcome, reason=reason)

    def _message(self, will: StoredWill) -> Placed:
        """The will as a placed publish of its client. Raises Refused or LocalMisuse when that is not possible."""
        spec = will.record().spec
        image = encode_image(
            flags=spec.qos | FLAG_MQTT | (FLAG_RETAIN if spec.retain else 0),
            born_ms=self._tools.clock.now_ms(),
            topic=parent_topic(spec.topic),
            properties=[(MQTT_TOPIC_KEY, spec.topic), (CLIENT_ID_KEY, will.client_id.encode()), *spec.properties],
            body=spec.payload,
        )
        return self._placement.placed(image)
