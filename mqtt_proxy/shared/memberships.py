"""Shared subscriptions of one session: its members take turns in sending and share its window.

Invariant: each member knows how many share the window. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from mqtt_proxy.mqtt.session.outgoing import Outgoing
from mqtt_proxy.shared.hub import SharedHub
from mqtt_proxy.shared.member import MessageSender, SharedSource
from remoting.protocol.records.record import RecordView


class Memberships:
    """The memberships of one session: they take turns in sending."""

    __slots__ = ("_hub", "_outgoing", "_turn", "_wake", "sources")

    def __init__(self, hub: SharedHub, outgoing: Outgoing, wake: Callable[[], None]) -> None:
        self._hub = hub
        self._outgoing = outgoing
        self._wake = wake
        self._turn = 0
        self.sources: list[SharedSource] = []

    def add(
        self, topic_filter: str, queue_id: int, qos: int, client_id: str, epoch: int, *, judged: bool = False
    ) -> SharedSource:
        """A subscription begins or is taken up again."""
        source = SharedSource(self._hub, self._outgoing, topic_filter, queue_id, qos)
        source.judge(judged)
        self.sources.append(source)
        self._share()
        source.join(client_id, epoch, self._wake)
        return source

    def remove(self, source: SharedSource) -> None:
        """A subscription has ended; the broker is told before anything else is asked of it."""
        self.sources.remove(source)
        self._share()
        source.leave()
        self._hub.flush()

    def rejoin(self, epoch: int) -> None:
        """The broker was lost and is back."""
        for source in self.sources:
            source.join(source.client_id, epoch, self._wake)

    def set_writable(self, writable: bool) -> None:
        """The socket takes messages again, or no longer."""
        for source in self.sources:
            source.set_writable(writable)

    def room_again(self) -> None:
        """The session's window may have room."""
        for source in self.sources:
            source.room_again()

    def at(self, queue_id: int) -> SharedSource | None:
        """The membership whose messages lie in this queue; of several the oldest."""
        return next((source for source in self.sources if source.queue_id == queue_id), None)

    def release(self) -> None:
        """The session has ended; everything there is to say was said by `SharedHub.flush`."""
        for source in self.sources:
            self._hub.forget(source)
        self.sources.clear()

    def send(self, outbound: MessageSender, portion: int) -> int:
        """Send up to `portion` messages as far as the turn's budget goes; how many were."""
        sent = 0
        for _ in range(len(self.sources)):
            self._turn = (self._turn + 1) % len(self.sources)
            source = self.sources[self._turn]
            while source.waiting and sent < portion and outbound.budget_bytes > 0:
                offset, raw = source.waiting[0]
                record = RecordView(raw)
                qos = min(record.flags & 3, source.qos)
                if qos and self._outgoing.free <= 0:
                    self._hub.watch(source)
                    break
                sent += source.send(outbound, offset, record, qos)
        return sent

    def _share(self) -> None:
        for source in self.sources:
            source.sharers = len(self.sources)
