"""The replica whose power is cut: it follows one master after another and stops at some point.

It runs the real `LogFollowing`, fed with encoded frames from `power_histories`; its own frames are decoded again. Only
the socket is left out.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from broker.replication.follower import Follower, ReplicaIdentity
from broker.replication.frames import FROM_REPLICA, NONCE_BYTES, Ack, Decoder, Ready
from broker.replication.host import StreamHost
from broker.replication.log_following import LogFollowing, MasterStream
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from runtime.faults import FaultPoints
from tests.fuzz.power_histories import History
from tests.fuzz.victim import report
from tests.support.clock import ManualClock

CUTS_ON_THE_WAY, CUT_CALLS = 0.4, 150
"""How often the power goes while a log is cut, and within how many calls."""
TURNS_MAX = 20_000
"""Turns of the loop after which a flush or a pass over the log is taken for lost."""


@dataclass
class ReplicaOrders:
    """The orders for one life of a replica."""

    settings: dict[str, Any]
    masters: list[tuple[int, History]]
    """(number, log) of those it follows, one after the other."""
    steps_max: int
    """Steps after which it stops where it is."""
    is_damaged: bool
    """Its log was damaged: it looks for that before it follows anybody."""
    is_closed: bool
    """It ends properly when it has done all."""


class Line:
    """Takes the place of a replica's socket."""

    def __init__(self, heard: Callable[[Ready | Ack], None]) -> None:
        self._heard = heard
        self._decoder = Decoder(FROM_REPLICA)

    def send(self, head: bytes, data: bytes | memoryview = b"") -> None:
        """Accept its output."""
        for frame in self._decoder.feed(head + bytes(data)):
            if isinstance(frame, Ready | Ack):
                self._heard(frame)

    def close(self) -> None:
        """It is over."""

    abort = close


class ReplicaVictim:
    """One life of a replica."""

    def __init__(
        self, directory: Path, orders: ReplicaOrders, seed: int, say: Callable[..., None],
        wait: Callable[[], object], events: Any, cut_within: Callable[[int], None],
    ) -> None:  # fmt: skip
        """`cut_within`: the power is cut within this many calls."""
        self._cut_within = cut_within
        self._directory, self._orders, self._events = directory, orders, events
        self._say, self._wait = say, wait
        self._due: deque[Callable[[], None]] = deque()
        self._chance = random.Random(seed)
        self._steps = 0

    def run(self) -> None:
        """Open, report, follow one master after the other."""
        store = LogStore.open(
            self._directory, StoreSettings(**self._orders.settings), clock=ManualClock(), faults=FaultPoints(),
            schedule=self._due.append, log=self._events, role="replica",
        )  # fmt: skip
        self._tell_cuts(store)
        if self._orders.is_damaged:
            self._until(store, lambda: bool(store.quarantined) or store.metrics()["scrub_passes_total"] > 0)
        self._say("opened", self._report(store))
        self._wait()
        for number, history in self._orders.masters:
            if not self._follow(store, number, history):
                return
        if self._orders.is_closed:
            store.close()
            self._say("closed")

    def _report(self, store: LogStore) -> dict[str, Any]:
        found = {} if store.quarantined else report(store)
        return {
            **found, "begin": store.begin_position, "end": store.end_position, "confirm": store.confirm_position,
            "kept": store.positions.kept, "epochs": store.replica.epochs,
        }  # fmt: skip

    def _tell_cuts(self, store: LogStore) -> None:
        """Report a truncation before it happens; the power is often cut during it."""
        truncate, reset = store.replica.truncate, store.replica.reset

        def tell(position: int) -> None:
            self._say("cutting", position)
            if self._chance.random() < CUTS_ON_THE_WAY:
                self._cut_within(self._chance.randrange(1, CUT_CALLS))

        def tell_truncate(position: int) -> None:
            if position < store.end_position:
                tell(position)
            truncate(position)

        def tell_reset(position: int) -> None:
            tell(0)
            reset(position)

        store.replica.truncate, store.replica.reset = tell_truncate, tell_reset  # type: ignore[method-assign]

    def _follow(self, store: LogStore, number: int, history: History) -> bool:
        """Take over everything from one master; False when it is to stop before."""
        line = Line(lambda frame: self._said(number, frame))
        host = StreamHost(
            now_ms=lambda: 0, later=lambda *_: None, soon=self._due.append, nonce=lambda: bytes(NONCE_BYTES),
            chance=self._chance.random, log=self._events,
        )  # fmt: skip
        following = LogFollowing(
            host, store, partial(Follower, ReplicaIdentity(broker=2, cluster="c", group="g")), "", history.epoch,
            silence_ms=1, dial=lambda _address, _stream: line, superseded=self._failed, failed=self._failed,
        )  # fmt: skip
        following.start()
        stream = following.stream
        assert stream is not None
        stream.opened()
        self._say("follows", number)
        self._hear(stream, history.handshake())
        while not self._is_over():
            if (
                store.end_position < history.begin
            ):  # its truncation ended before a group that the master does not have in full
                following.stop()
                return self._follow(store, number, history)
            if store.end_position < history.end:
                wanted = self._chance.choice((100, 3_000, 20_000))
                self._hear(stream, history.transfer(store.end_position, wanted))
            elif store.positions.kept < history.end:
                self._until(store, lambda: store.positions.kept == history.end)
                self._hear(stream, history.heartbeat())
            else:
                following.stop()
                return True
            store.maintain(0)
            self._turn()
            if self._chance.random() < 0.3:
                time.sleep(self._chance.random() * 0.001)
        return False

    def _hear(self, stream: MasterStream, data: bytes) -> None:
        stream.received(data)
        assert not stream.is_over, stream.reason

    def _is_over(self) -> bool:
        self._steps += 1
        return self._steps > self._orders.steps_max

    def _said(self, number: int, frame: Ready | Ack) -> None:
        if isinstance(frame, Ready):
            self._say("ready", number, frame.position)
        else:
            self._say("acked", number, frame.end)

    def _failed(self, why: object) -> None:
        raise AssertionError(why)

    def _until(self, store: LogStore, condition: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if condition():
                return
            store.maintain(0)
            self._turn()
            time.sleep(0.0002)
        raise AssertionError("what was waited for did not come")

    def _turn(self) -> None:
        while self._due:
            self._due.popleft()()
