"""Publishes of all connections -> one append request per loop turn -> acknowledgements in order of receipt.

What every connection read during one turn of the loop is gathered and sent as one APPEND_MANY (more than one only above
`append_bytes_max`). The reply means durable: only then does each connection acknowledge its packet ids, in the order of
receipt.

Requests not answered when the broker was lost are sent again to the next one, before what was published since: QoS 1
may arrive twice then, QoS 0 may not and is dropped, and a publisher of QoS 2 is disconnected, because only its session
knows which of it is stored. A refusal closes the connection of its publisher, which sends again after it reconnects. If
the broker's refusal concerns a message (not the broker itself), the request is split by connection so that only the
publisher of that message is disconnected.

With `report_no_subscribers`, the broker is asked whether messages that clients of MQTT 5 publish with QoS 1 and 2 have
subscribers; only then does its answer contain more than that the messages are stored.

Bytes gathered and in flight are bounded: above `publish_bytes_max` publishers are not read any more, below half of it
all are read again. While there is no broker, gathered publishes wait here under the same bound. Loop rule: everything
on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.link import Link
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.mqtt.session import scan
from mqtt_proxy.publishing.origin import Origin, Unanswered, is_asked, tell_unwanted
from mqtt_proxy.tracing import ProxyTraces, TracedPublish
from remoting.protocol.bodies.append_body import PLACES_FIELD, SUBSCRIBERS_FIELD
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode, response_name
from remoting.protocol.records.image import iter_images
from remoting.protocol.records.record import FLAG_QOS_MASK
from remoting.transport.turn import soon
from runtime.clock import Clock
from runtime.logs import get_logger
from runtime.metrics import Counter

FAULTS_OF_A_MESSAGE = frozenset(
    {
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.FLOW_CONTROL,
    }
)
"""Refusals that concern one message and not the broker's state."""

LOST_SESSION = ResponseCode.ILLEGAL_OPERATION
"""The refusal of a request with a QoS 2 publish of a session that the broker does not hold for this proxy: it was taken
over, or not taken again yet after a loss of the broker."""

APPENDS_IN_FLIGHT = 2
"""While this many appends wait for the disk, further publishes gather: one is being flushed, one is ready for the next
flush, and more could not be flushed sooner anyway. Fewer, fuller requests at the same latency."""
GATHERED_BYTES_MAX = 256 * 1024
"""Gathered publishes of this size are sent however many appends are in flight."""

_APPEND_MANY = RequestCode.APPEND_MANY  # looking up a member of an enumeration is slow
_STORED = {PLACES_FIELD: "0"}
"""The answer need not contain where the messages are; never modified."""
_SUBSCRIBED = {SUBSCRIBERS_FIELD: "1"}
"""The answer contains which messages have no subscribers; never modified."""


class PublishRun:
    """Consecutive messages of one origin, as record images back to back."""

    __slots__ = ("count", "counters", "images", "origin", "packet_ids", "size_bytes", "taken_ns", "traced")

    def __init__(self, origin: Origin, images: bytes, packet_ids: list[int], count: int, taken_ns: int) -> None:
        """`taken_ns`: when they were received, by the clock of the machine."""
        self.taken_ns = taken_ns
        self.origin = origin
        self.counters = origin.counters
        self.images = images
        self.packet_ids = packet_ids
        self.size_bytes = len(images)
        self.count = count
        self.traced: list[TracedPublish] | None = None
        """The sampled messages among them."""

    def apart(self) -> list[PublishRun]:
        """The same messages as runs of one each."""
        ids = iter(self.packet_ids)
        return [
            PublishRun(
                self.origin, bytes(image.raw), [next(ids)] if image.flags & FLAG_QOS_MASK else [], 1, self.taken_ns
            )
            for image in iter_images(self.images)
        ]


class Frame:
    """One append request in flight: runs in order of receipt, and the publisher that handles its answer."""

    __slots__ = ("_publisher", "runs", "size_bytes")

    def __init__(self, publisher: Publisher, runs: list[PublishRun]) -> None:
        self._publisher = publisher
        self.runs = runs
        self.size_bytes = 0
        for run in runs:
            self.size_bytes += run.size_bytes

    def answered(self, reply: bytes, error: Exception | None) -> None:
        """The broker's answer, or the error."""
        self._publisher.answered(self, reply, error)

    def images(self) -> bytes:
        """All images in order; those of a single run as they are."""
        return b"".join([run.images for run in self.runs])


class Backpressure:
    """Bytes without an answer so far, and the origins that are paused because of them."""

    __slots__ = ("_held", "_high_bytes", "_low_bytes", "_pauses", "pending_bytes")

    def __init__(self, high_bytes: int, pauses: Counter) -> None:
        """Above `high_bytes` publishers are paused, which `pauses` counts; below half of it all are read again."""
        self._high_bytes = high_bytes
        self._low_bytes = high_bytes // 2
        self._pauses = pauses
        self._held: dict[Origin, None] = {}
        self.pending_bytes = 0

    def add(self, origin: Origin, size_bytes: int) -> None:
        """The origin has published these bytes."""
        self.pending_bytes += size_bytes
        if self.pending_bytes > self._high_bytes and origin not in self._held:
            self._held[origin] = None
            self._pauses.value += 1
            origin.pause()

    def settle(self, size_bytes: int) -> None:
        """These bytes were answered, or will not be sent any more."""
        self.pending_bytes -= size_bytes
        assert self.pending_bytes >= 0, self.pending_bytes
        if self._held and self.pending_bytes <= self._low_bytes:
            held, self._held = self._held, {}
            for origin in held:
                origin.release()

    def forget(self, origin: Origin) -> None:
        """The origin has ended."""
        self._held.pop(origin, None)


class Publisher:
    """Gathers, appends, acknowledges. One per broker link."""

    def __init__(
        self, link: Link, config: ProxyConfig, clock: Clock, metrics: ProxyMetrics, traces: ProxyTraces | None = None
    ) -> None:
        self._link = link
        self._now_ns = clock.now_ns
        self._frame_bytes_max = config.append_bytes_max
        self._timeout_ms = config.append_timeout_ms
        self._traces = traces
        self._asks = config.report_no_subscribers
        self._gathered: list[PublishRun] = []
        self._gathered_bytes = 0
        self._pressure = Backpressure(config.publish_bytes_max, metrics.publishes.pauses)
        self._in_flight: dict[Frame, None] = {}
        self._lost = Unanswered()
        self._scheduled = False
        self._drained: asyncio.Event | None = None
        """Set while `drain` waits for all answers."""
        self._log = get_logger("proxy.publish")
        self.counts = metrics.publishes
        link.on_up(self._came_up)

    @property
    def pending_bytes(self) -> int:
        """Bytes of images without an answer so far."""
        return self._pressure.pending_bytes

    def publish(self, origin: Origin, client_id: bytes, publishes: list[Publish], *, exact: bool = False) -> None:
        """Accept messages. `origin.confirmed` or `origin.rejected` follows for every QoS.

        `exact`: the session outlives its connection, so the broker notes the packet ids of QoS 2 with the messages.
        """
        self.take(origin, client_id, publishes, exact)

    def take(self, origin: Origin, client_id: bytes, publishes: list[Publish], exact: bool) -> None:
        """`publish` as the hot path calls it."""
        taken_ns = self._now_ns()
        born_ms = taken_ns // 1_000_000
        if self._traces is not None:
            self._traces.begin(publishes)
        try:
            images, packet_ids = scan.choice.core.images(publishes, client_id, born_ms, exact)
        except LocalMisuse as error:
            self.counts.refused.child("broker_refused").value += len(publishes)
            origin.rejected(f"broker_refused: {error}")
            return
        run = PublishRun(origin, images, packet_ids, len(publishes), taken_ns)
        if self._traces is not None:
            run.traced = self._traces.found(images)
        self._gathered.append(run)
        self._gathered_bytes += run.size_bytes
        self._pressure.add(origin, run.size_bytes)
        self._schedule()

    def forget(self, origin: Origin) -> None:
        """The origin's connection has ended. What it published is still appended, unless part is to be sent again: its
        client does that itself after it reconnects, and in order."""
        self._pressure.forget(origin)
        if self._lost.has(origin):
            self._give_up((origin,))

    async def drain(self) -> None:
        """Wait until everything gathered was answered."""
        while self._in_flight or self._gathered or self._lost:
            if self._drained is None:
                self._drained = asyncio.Event()
            await self._drained.wait()

    def send_now(self) -> None:
        """Send what has gathered now, before any later request of the caller."""
        if self._link.up:
            self._send_gathered()

    def go_on(self) -> None:
        """Send what has gathered, unless it waits for the disk."""
        if self._gathered and self._link.up and not self._disk_is_behind():
            self._send_gathered()

    def _schedule(self) -> None:
        if not self._scheduled and self._gathered:
            self._scheduled = True
            soon(self._flush)

    def _came_up(self) -> None:
        """Resume after the sessions, which their owners reopen in this turn."""
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if self._lost.runs and self._link.up:
            self._send_gathered()
        self._schedule()

    def _flush(self) -> None:
        self._scheduled = False
        self.go_on()

    def _send_gathered(self) -> None:
        runs, self._gathered = self._gathered, []
        self._gathered_bytes = 0
        if self._lost.runs:  # unanswered runs go first
            lost = self._lost.take()
            self.counts.repeated.value += sum([run.count for run in lost])  # no closure where typed
            runs = [*lost, *runs]
        start = size_bytes = 0
        for index, run in enumerate(runs):
            if index > start and size_bytes + run.size_bytes > self._frame_bytes_max:
                self._send(Frame(self, runs[start:index]))
                start, size_bytes = index, 0
            size_bytes += run.size_bytes
        if runs:
            self._send(Frame(self, runs[start:]))

    def _disk_is_behind(self) -> bool:
        return len(self._in_flight) >= APPENDS_IN_FLIGHT and self._gathered_bytes < GATHERED_BYTES_MAX

    def _send(self, frame: Frame) -> None:
        self._in_flight[frame] = None
        self.counts.requests.value += 1
        fields = _SUBSCRIBED if self._asks and is_asked(frame.runs) else _STORED
        self._link.call(_APPEND_MANY, frame.images(), frame.answered, self._timeout_ms, fields=fields)

    def answered(self, frame: Frame, reply: bytes, error: Exception | None) -> None:
        """Acknowledge what is stored, report what was refused, keep what has no answer."""
        del self._in_flight[frame]
        if error is None:
            if self._asks and reply:
                tell_unwanted(frame.runs, reply)
            self._confirm(frame)
        elif isinstance(error, Refused):
            self._refused(frame, error)
        else:
            self._unanswered(frame, f"broker_lost: {error}")
        self._schedule()
        self._check_idle()

    def _unanswered(self, frame: Frame, reason: str) -> None:
        """It is unknown whether these are stored."""
        if self._link.up:
            self._link.drop(reason)  # what was sent after them must not be stored before
        once = self._lost.add(frame.runs)
        self._count_lost()
        self._give_up(once)
        for origin in once:
            origin.rejected(reason)

    def _give_up(self, origins: Collection[Origin]) -> None:
        """Send nothing more of these: their clients do it after they reconnect."""
        if origins:
            self._lost.give_up(origins, self._withdrawn(origins))
            self._count_lost()

    def _count_lost(self) -> None:
        count, size_bytes = self._lost.take_dropped()
        self.counts.refused.child("broker_lost").value += count
        self._pressure.settle(size_bytes)
        self._check_idle()

    def _confirm(self, frame: Frame) -> None:
        count = 0
        first = frame.runs[0]
        counters = first.counters
        for run in frame.runs:
            if run.counters is not counters:  # added up while they are the same: most runs have one message
                counters.confirmed.value += count
                counters, count = run.counters, 0
            count += run.count
            run.origin.confirmed(run.packet_ids)
            if run.traced is not None:
                self._note(run, "")
        counters.confirmed.value += count
        waited_ns = self._now_ns() - first.taken_ns
        first.counters.acknowledge_s.observe(waited_ns / 1e9 if waited_ns > 0 else 0.0)  # the clock may be set
        self._pressure.settle(frame.size_bytes)

    def _note(self, run: PublishRun, error: str) -> None:
        """Note the spans of a run that was confirmed, or refused for this reason."""
        if self._traces is not None and run.traced is not None:
            self._traces.published(run.traced, run.taken_ns, run.counters.acknowledge_s, error)

    def _refused(self, frame: Frame, error: Refused) -> None:
        by_origin: dict[Origin, list[PublishRun]] = {}
        for run in frame.runs:
            by_origin.setdefault(run.origin, []).append(run)
        reason = f"broker_refused: {response_name(error.code)}: {error.remark}"
        is_alone = len(by_origin) == 1
        if error.code not in FAULTS_OF_A_MESSAGE and (is_alone or error.code != LOST_SESSION):
            self._reject(frame.runs, reason)
            return
        later = {run.origin for other in self._in_flight for run in other.runs}
        for origin, runs in by_origin.items():
            # Messages of this origin that are already in flight would overtake the repeated ones.
            if len(frame.runs) == frame.runs[0].count == 1:
                self._refuse_one(runs[0], error, reason)
            elif origin in later or not self._link.up:
                self._reject(runs, reason)
            elif not is_alone:
                self._send(Frame(self, runs))
            else:
                for run in runs:
                    for one in run.apart():
                        one.traced = None if self._traces is None else self._traces.found(one.images)
                        self._send(Frame(self, [one]))

    def _refuse_one(self, run: PublishRun, error: Refused, reason: str) -> None:
        """The message at fault is found; it alone is refused."""
        self.counts.refused.child("broker_refused").value += 1
        self._log.warning("publishes_refused", messages=1, reason=reason)
        self._note(run, reason)
        run.origin.refused(run.packet_ids[0] if run.packet_ids else 0, error.code, reason)
        self._pressure.settle(run.size_bytes)

    def _reject(self, runs: Sequence[PublishRun], reason: str) -> None:
        origins = dict.fromkeys(run.origin for run in runs)
        runs = [*runs, *self._withdrawn(origins)]
        count = sum(run.count for run in runs)
        self.counts.refused.child(reason.partition(":")[0]).value += count
        self._log.warning("publishes_refused", messages=count, reason=reason)
        for run in runs:
            self._note(run, reason)
        for origin in origins:
            origin.rejected(reason)
        self._pressure.settle(sum(run.size_bytes for run in runs))

    def _withdrawn(self, origins: Collection[Origin]) -> list[PublishRun]:
        """Messages of these that still wait: appended now they would overtake what is going to be sent again."""
        withdrawn = [run for run in self._gathered if run.origin in origins]
        self._gathered = [run for run in self._gathered if run.origin not in origins]
        self._gathered_bytes -= sum(run.size_bytes for run in withdrawn)
        return withdrawn

    def _check_idle(self) -> None:
        if self._drained is not None and not (self._in_flight or self._gathered or self._lost):
            self._drained.set()
            self._drained = None
