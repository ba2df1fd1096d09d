"""The name server at work: state, liveness, clock and file joined; every change of the state goes through here.

Invariant: an address is in the liveness table exactly while it is in the state.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.config import ControllerConfig
from controller.name_server import state
from controller.name_server.changes import Change, Event, MemberLeft, RegisterBroker, Registered, Rejected, RemoveMember
from controller.name_server.liveness import BrokerKey, Liveness
from controller.name_server.metadata_file import MetadataFile, Persister
from controller.name_server.state import Metadata, MetadataLimits, MetadataState
from remoting.protocol.bodies.route_body import TopicRoute
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from runtime.clock import Clock
from runtime.logs import get_logger


class NameServer:
    """What request handlers and the ticker call."""

    def __init__(self, config: ControllerConfig, clock: Clock, file: MetadataFile) -> None:
        """Restore the metadata of `file`; brokers in it count as alive and have one time limit to show it."""
        self.config = config
        self.state = MetadataState(
            file.load(), MetadataLimits(config.brokers_max, config.topics_max, config.key_values_max)
        )
        self.liveness = Liveness(config.broker_timeout_ms, config.liveness_scan_ms)
        self.persister = Persister(self.state, file, config.persist_pause_ms)
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._log = get_logger("controller")
        for group in self.metadata.groups.values():
            for member in group.members.values():
                self.liveness.add((group.cluster, member.address), self.now_ms())

    @property
    def metadata(self) -> Metadata:
        """The state's content; to be read only."""
        return self.state.metadata

    def now_ms(self) -> int:
        """Milliseconds of the clock that never jumps."""
        return self._clock.monotonic_ns() // 1_000_000

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback()` after every change of the state."""
        self._listeners.append(callback)

    def apply(self, change: Change) -> list[Event]:
        """Carry out a change; `Refused` with the reason when it cannot be."""
        revision = self.state.revision
        events = self.state.apply(change)
        self.persister.changed()
        if self.state.revision != revision:
            for listener in self._listeners:
                listener()
        for event in events:
            if isinstance(event, Rejected):
                self._log.warning("change_rejected", change=type(change).__name__, reason=event.remark)
                raise Refused(ResponseCode.SYSTEM_ERROR, event.remark)
            if isinstance(event, MemberLeft):
                self.liveness.forget((event.cluster, event.address))
                self._log.warning(
                    "broker_left",
                    broker=event.broker_name,
                    id=event.broker_id,
                    address=event.address,
                    reason=event.reason,
                )
        return events

    def register(self, command: RegisterBroker, timeout_ms: int | None) -> None:
        """Put a broker into the routes and expect its heartbeats."""
        for event in self.apply(command):
            if isinstance(event, Registered):
                self.liveness.add((event.cluster, event.address), self.now_ms(), timeout_ms)
                if event.first:
                    self._log.info(
                        "broker_registered", broker=event.broker_name, id=event.broker_id, address=event.address
                    )

    def beat(self, key: BrokerKey, timeout_ms: int | None = None) -> bool:
        """A broker shows that it lives; False when it must register first."""
        return self.liveness.beat(key, self.now_ms(), timeout_ms)

    def connection_lost(self, key: BrokerKey) -> None:
        """The connection a broker registered on is gone."""
        self.liveness.shorten(key, self.now_ms(), self.config.broker_lost_grace_ms)

    def tick(self) -> None:
        """Take brokers that were silent for too long out of the routes."""
        for cluster, address in self.liveness.tick(self.now_ms()):
            self.apply(RemoveMember(cluster, address, "it was silent for too long"))

    def topic_route(self, topic: str) -> TopicRoute | None:
        """Where the queues of a topic are."""
        return state.topic_route(self.metadata, topic, self.config.template_queue_count)
