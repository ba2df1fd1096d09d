"""One client's socket on the server's side: commands in, replies and pushes out; and limits on unfinished frames.

A server may also send requests of its own (`SocketPeer.ask`), whose answers are matched by their number.

The first bytes of a connection identify TLS and other protocols. `PeerFrames` is a peer's state for the server's
limits: the progress of an unfinished frame (`CountedReader`), and whether a key is proved (the `Stranger` of
`server.py`). `Intake` limits unfinished frames in bytes, time and minimum speed:

    peer without proof   64 KB; more only if the frame names a known key, within the shares of its address and of all
    such peers together; closed beyond any of them
    proved peer          reserves its frame before reading on; while the budget is used up it waits, unread, in order
    each of them         must end within a deadline and keep a minimum rate, checked every few seconds

A peer is proved by its first request with a valid signature, or from the beginning where no key is required.
Invariants: nothing a peer sends can raise into the loop or affect another peer; `begun` is True exactly while an
incomplete frame is buffered, and `Intake` knows of that frame; reserved bytes of proved peers never exceed
`read_bytes_max`, unless one frame alone does; those of the others never exceed `unproven_bytes_max` by more than one
piece; a waiting peer has no reservation, so every peer with one can finish. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from remoting import clock
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import PROVED_ATTRIBUTE, Access
from remoting.transport.calls import Calls, answer
from remoting.transport.certificates import ENFORCING, ServerTls
from remoting.transport.contracts import IN_FLIGHT_BYTES_MAX, Answered, CloseCallback, Handler, Peer
from remoting.transport.link import LOG, FrameLink, LinkSettings

CONNECTION, ADDRESS, TOTAL, BUDGET, DEADLINE, SLOW, REFUSALS = REASONS = (
    "unproven_connection", "unproven_address", "unproven_total", "budget", "deadline", "slow", "refusals",
)  # fmt: skip
"""Reasons of closed connections, as metric labels."""
WAITING_MAX = 64
"""Most proved peers that wait for room in the budget; the connection of the next is closed."""
WINDOW_S = 5.0
"""Seconds between checks of a frame's speed."""
UNPROVEN_DEADLINE_S = 10.0
"""Longest time for one frame of a peer without proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """Limits on unfinished frames of one server, in bytes, ms and bytes per second."""

    read_bytes_max: int = 268_435_456
    unproven_bytes_max: int = 67_108_864
    unproven_address_bytes_max: int = 33_554_432
    unproven_connection_bytes_max: int = 65_536
    frame_deadline_ms: int = 60_000
    frame_bytes_per_s_min: int = 16_384
    unproven_idle_ms: int = 120_000
    """Of connections between their frames; see `strangers`."""


class CountedReader(Protocol):
    """A connection whose frames are limited here."""

    @property
    def proved(self) -> bool:
        """Whether its requests are signed, or need no signature."""
        ...

    @property
    def idle(self) -> bool:
        """Whether reading from it is paused, so that its time must not run."""
        ...

    def host(self) -> str:
        """Its address without the port."""
        ...

    def names_key(self) -> bool:
        """Whether the unfinished frame has its header, which names a known key."""
        ...

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`."""
        ...

    def resume_reading(self) -> None:
        """Read from it again, after it was paused."""
        ...


@dataclass(slots=True)
class _Frame:
    """An unfinished frame."""

    proved: bool
    host: str
    begun_s: float
    judged_s: float
    judged_bytes: int = 0
    """Time of the last check of its speed, and its bytes then."""
    size: int = 0
    held: int = 0
    charge: int = 0
    waits: bool = False


class Intake:
    """Accounts for the unfinished frames of one server."""

    def __init__(self, limits: IntakeLimits | None = None) -> None:
        self.limits = limits or IntakeLimits()
        self.refused: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.reserved_bytes = 0
        """Bytes reserved for proved peers."""
        self.unproven_bytes = 0
        self._frames: dict[CountedReader, _Frame] = {}
        self._waiting: dict[CountedReader, _Frame] = {}
        self._hosts: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """Number of peers that wait for room."""
        return len(self._waiting)

    def progress(self, reader: CountedReader, held: int, size: int, now_s: float) -> str:
        """Note `held` bytes of a frame of `size`; return why the connection must be closed, empty to continue."""
        frame = self._frames.get(reader)
        if frame is None:
            frame = self._frames[reader] = _Frame(reader.proved, reader.host(), now_s, now_s)
        frame.held, frame.size = held, size
        reason = self._admit(reader, frame) if frame.proved else self._ration(reader, frame)
        if reason:
            self.refused[reason] += 1
        return reason

    def finished(self, reader: CountedReader, now_s: float) -> None:
        """Release the reservation of a frame that is complete or whose connection ended, and resume waiting peers."""
        frame = self._frames.pop(reader, None)
        if frame is None:
            return
        self._waiting.pop(reader, None)
        self._charge(frame, 0)
        for waiting_reader, waiting in list(self._waiting.items()):
            if not self._has_room(waiting):
                break
            del self._waiting[waiting_reader]
            waiting.waits = False
            waiting.begun_s = waiting.judged_s = now_s
            self._charge(waiting, waiting.size)
            waiting_reader.resume_reading()

    def overdue(self, now_s: float) -> Iterator[tuple[CountedReader, str]]:
        """Yield and count the connections whose frame is overdue or too slow, each with the reason."""
        for reader, frame in list(self._frames.items()):
            if reader.idle:
                frame.begun_s = frame.judged_s = now_s
                continue
            reason = self._judge(frame, now_s)
            if reason:
                self.refused[reason] += 1
                yield reader, reason

    def excuse(self, late_s: float) -> None:
        """This side was late by so much: no peer is charged for it."""
        for frame in self._frames.values():
            frame.begun_s += late_s
            frame.judged_s += late_s

    def _judge(self, frame: _Frame, now_s: float) -> str:
        """Return whether a frame is overdue, or too slow since the last check, as a reason; else empty."""
        limits = self.limits
        if now_s - frame.begun_s > (limits.frame_deadline_ms / 1_000 if frame.proved else UNPROVEN_DEADLINE_S):
            return DEADLINE
        passed_s = now_s - frame.judged_s
        if passed_s < WINDOW_S:
            return ""
        if frame.held - frame.judged_bytes < passed_s * limits.frame_bytes_per_s_min:
            return SLOW
        frame.judged_s, frame.judged_bytes = now_s, frame.held
        return ""

    def _admit(self, reader: CountedReader, frame: _Frame) -> str:
        """Reserve a proved peer's whole frame, or let it wait."""
        if frame.waits or frame.charge == frame.size:
            return ""
        if self._has_room(frame):
            self._charge(frame, frame.size)
            return ""
        if len(self._waiting) >= WAITING_MAX:
            return BUDGET
        frame.waits = True
        self._waiting[reader] = frame
        reader.pause_reading()
        return ""

    def _has_room(self, frame: _Frame) -> bool:
        others = self.reserved_bytes - frame.charge
        return others == 0 or others + frame.size <= self.limits.read_bytes_max

    def _ration(self, reader: CountedReader, frame: _Frame) -> str:
        """Check the shares for the frame of a peer without proof."""
        limits = self.limits
        if frame.held > limits.unproven_connection_bytes_max and not reader.names_key():
            return CONNECTION
        self._charge(frame, frame.held)
        if self._hosts[frame.host] > limits.unproven_address_bytes_max:
            return ADDRESS
        return TOTAL if self.unproven_bytes > limits.unproven_bytes_max else ""

    def _charge(self, frame: _Frame, charge: int) -> None:
        change, frame.charge = charge - frame.charge, charge
        if frame.proved:
            self.reserved_bytes += change
            return
        self.unproven_bytes += change
        held = self._hosts.get(frame.host, 0) + change
        if held:
            self._hosts[frame.host] = held
        else:
            self._hosts.pop(frame.host, None)


REFUSALS_MAX = 100
"""Refusals sent to a peer that has to authenticate and has not; the next one closes the connection. Unread refusals
take memory."""


class PeerFrames:
    """State of one peer for the server's limits."""

    def __init__(self, attributes: dict[str, object], link: FrameLink, intake: Intake, access: Access) -> None:
        """`attributes` are the peer's; they contain whether it has proved a key."""
        self.needs_no_proof = False
        """Whether the peer is trusted without a key; set when its address is known."""
        self.begun = False
        """Whether there is an unfinished frame."""
        self.frames_in = 0
        """Number of complete frames so far."""
        self._attributes = attributes
        self._link = link
        self._intake = intake
        self._access = access
        self._is_held = False
        self._refusals_left = REFUSALS_MAX
        link.on_read = self._read

    @property
    def proved(self) -> bool:
        """Whether its requests are signed, or need no signature."""
        return PROVED_ATTRIBUTE in self._attributes or self.needs_no_proof

    @property
    def idle(self) -> bool:
        """Whether reading from it is paused."""
        return self._is_held or not self._link.writable

    def host(self) -> str:
        """Its address without the port."""
        return self._link.address.rpartition(":")[0]

    def names_key(self) -> bool:
        """Whether the unfinished frame has its header, which names a known key."""
        try:
            head = self._link.decoder.unfinished_head()
        except RemoteViolation:
            return False
        return head is not None and self._access.knows(head)

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`."""
        self._is_held = True
        self._link.pause_reading()

    def resume_reading(self) -> None:
        """Read from it again, after it was paused."""
        self._is_held = False
        self._link.resume_reading()

    def cut(self, reason: str) -> None:
        """Abort the connection and log the reason."""
        LOG.warning("connection with %s cut: %s", self._link.address, reason)
        self._link.abort(reason)

    def refused(self) -> None:
        """Count a refusal for lack of a right; cut a peer without a proved key after REFUSALS_MAX."""
        if self.proved or self._link.closing is not None:
            return
        if not self._refusals_left:
            self._intake.refused[REFUSALS] += 1
            self.cut(f"{REFUSALS}: {REFUSALS_MAX} requests refused and no key proved")
        self._refusals_left -= 1

    def ended(self) -> None:
        """Note the end of the connection and free its reservation."""
        self._intake.finished(self, clock.monotonic_s())

    def _read(self, frames: int) -> None:
        """Note a read that completed `frames` frames."""
        self.frames_in += frames
        held = self._link.decoder.buffered_bytes
        if held or self.begun:
            self._account(held, whole=frames > 0)

    def _account(self, held: int, *, whole: bool) -> None:
        """Account for `held` bytes of an unfinished frame; `whole`: a frame was completed before."""
        now_s = clock.monotonic_s()
        if self.begun and (whole or not held):
            self._intake.finished(self, now_s)
        self.begun = bool(held) and self._link.closing is None
        if self.begun:
            size = self._link.decoder.frame_bytes
            reason = self._intake.progress(self, held, size, now_s)
            if reason:
                self.cut(f"{reason}: {held} bytes of an unfinished frame of {size}")


__all__ = ["Handler", "Peer", "SocketPeer"]

TLS_HANDSHAKE_BYTE = 0x16
"""First byte of a TLS connection. A frame cannot start with it: that would be a length above 368 MB."""

HTTP2_PREFACE = b"PRI * HTTP/2"
HTTP_VERBS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
MQTT_CONNECT = 0x10
MQTT_NAMES = (b"\x00\x04MQTT", b"\x00\x06MQIsdp")
LENGTH_BYTES_MAX = 4
FIRST_BYTES = 16
"""Number of bytes of a connection that are examined for its protocol."""
QUESTIONS_MAX = 64
"""Requests of this server that one peer may leave unanswered; the next one is refused with SYSTEM_BUSY."""


class SocketPeer:
    """A `Peer` on a socket; reports its connection (`made`) and its end (`lost`) to the server."""

    def __init__(
        self,
        handler: Handler,
        settings: LinkSettings,
        made: Callable[[SocketPeer], bool],
        lost: Callable[[SocketPeer, str], None],
        tls: ServerTls | None = None,
        intake: Intake | None = None,
        access: Access | None = None,
    ) -> None:
        self.address = "?"
        self.loopback = False
        self.reached_at: tuple[str, int] | None = None
        """Our own end of the connection; None for sockets without a port."""
        self.attributes: dict[str, object] = {}
        self.unasked_answers = 0
        """Answers to no request, or to one that had timed out."""
        self._questions: Calls | None = None
        self.link = FrameLink(settings, self, pauses_reading=True)
        """The socket's protocol."""
        self.link.on_first_bytes = self._first_bytes
        self._access = access or Access()
        self.frames = PeerFrames(self.attributes, self.link, intake or Intake(), self._access)
        self._counters = settings.counters
        self._handler = handler
        self._made = made
        self._lost = lost
        self._tls = tls
        self._plain_refused = tls is not None and tls.mode == ENFORCING

    @property
    def writable(self) -> bool:
        """False while output above the limit is queued."""
        return self.link.writable

    def send(self, command: Command) -> None:
        """Queue a reply or a push; all output of a loop turn is one write."""
        self.link.send(command)

    def ask(self, command: Command, answered: Answered, timeout_ms: int) -> None:
        """Send a request of this server; `answered` is called once, with the answer or the reason why there is none.

        The reason is `RequestTimeout`, or `ConnectionLost` when the connection ends first.

        Raises:
            Refused: SYSTEM_BUSY with `QUESTIONS_MAX` unanswered requests.
            ConnectionLost: the connection has ended.
        """
        if self._questions is None:
            self._questions = Calls(self.address, IN_FLIGHT_BYTES_MAX)
            if self.link.closing is not None:
                self._questions.fail(self.link.closing)
        if len(self._questions) >= QUESTIONS_MAX:
            remark = f"{self.address} has not answered {QUESTIONS_MAX} requests: try again later"
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
        self._questions.begin(command, timeout_ms, self.send, answered)

    def close(self, reason: str) -> None:
        """Send what is queued, then close."""
        self.link.end(reason)

    def abort(self, reason: str) -> None:
        """Close without sending what is queued."""
        self.link.abort(reason)

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` once when it has ended; next turn if it already has."""
        self.link.on_close(callback)

    def refused(self) -> None:
        """Count a refusal for lack of a right; may close the connection."""
        self.frames.refused()

    def link_made(self, own_address: tuple[str, int] | None) -> None:
        """Note where the peer is, then abort unless the server has room for it."""
        self.address = self.link.address
        self.loopback = is_loopback(self.address)
        self.reached_at = own_address
        self.frames.needs_no_proof = self._access.trusts(self)
        if not self._made(self):
            self.abort("too many connections")

    def command_received(self, command: Command) -> None:
        """Handle a request, or the answer to one of ours; unexpected answers are counted and dropped."""
        if self.link.closing is not None:
            return  # it came in the same read as the request that ended the connection
        if command.is_response:
            self._answered(command)
            return
        if self._plain_refused:
            self.send(command.reply(ResponseCode.NO_PERMISSION, "this port takes TLS only: connect with TLS"))
            self.link.violated("the peer does not use TLS, which this port requires")
            return
        answer(self._handler, self, command)

    def _answered(self, command: Command) -> None:
        if self._questions is None:
            self.unasked_answers += 1
            return
        late = self._questions.late_answers
        self._questions.answer(command)
        self.unasked_answers += self._questions.late_answers - late

    def link_lost(self, reason: str) -> None:
        """Free the reservation of its frames, fail what was asked of it, then notify the server."""
        self.frames.ended()
        if self._questions is not None:
            self._questions.fail(reason)
        self._lost(self, reason)

    def _first_bytes(self, data: memoryview) -> None:
        """Start TLS, or refuse the peer of another protocol."""
        if data[0] == TLS_HANDSHAKE_BYTE:
            self._begin_tls()
        elif reason := foreign(bytes(data[:FIRST_BYTES])):
            self._counters.foreign += 1
            self.link.violated(reason)

    def _begin_tls(self) -> None:
        if self._tls is None:
            self.link.violated("the peer uses TLS, but this port has no certificate configured")
            return
        self._plain_refused = False
        self.link.start_tls(self._tls.context)


def is_loopback(address: str) -> bool:
    """True when `host:port` (or a local socket) is on this machine."""
    host = address.rpartition(":")[0]
    if not host:
        return address == "local"
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def foreign(first: bytes) -> str:
    """Return the foreign protocol of a connection's first bytes, with a hint; empty if they may be a frame.

    No frame is mistaken: as a length, each pattern would be a frame above 268 MB.
    """
    if first.startswith(HTTP2_PREFACE[:4]):
        return "it uses HTTP/2, as gRPC clients do: gRPC has a port of its own, see docs/howto/grpc.md"
    if first.startswith(HTTP_VERBS):
        return "it uses HTTP: metrics and health are at the administration port (admin_port)"
    if first[:1] == bytes((MQTT_CONNECT,)) and any(
        first[1 + size :].startswith(MQTT_NAMES) for size in range(1, LENGTH_BYTES_MAX + 1)
    ):
        return "it uses MQTT: connect to the MQTT port of a proxy or of `lightmq up`"
    return ""
