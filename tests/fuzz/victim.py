"""The process that dies: opens the store, reports what it recovered, then writes until it is killed or fails.

It runs in a fork, writes lines of JSON to a pipe and never returns.
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptLog, StoreFailed, StoreFull, UnreadableOffsets
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from broker.store.state import state_kinds
from remoting.protocol.records.record import RecordView, header_of
from runtime.faults import FaultPoints
from tests.fuzz.workload import operation
from tests.sim.stores import message
from tests.support.clock import ManualClock


class Quiet:
    """Accepts events and drops them."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@dataclass
class Orders:
    """The orders for one life of the process."""

    seed: int
    workload: int
    settings: dict[str, Any]
    fault: tuple[str, str, int] | None = None
    """Fault point, what (`kill` or an errno name), and how many hits pass before."""
    slow_flush: bool = False
    close_after: int = 0
    """Operations after which the store is closed properly; 0: never."""
    read_only: bool = False
    """Only open, read everything around damage, and append a little."""
    early: bool = field(default=False)
    """The fault is armed before the store is opened."""


def live(directory: Path, orders: Orders, answers: int, go: int) -> None:
    """Open, report, wait for the go-ahead, write; ends with the process."""
    try:
        Victim(directory, orders, answers, go).run()
    except BaseException as error:  # every error is reported to the parent
        os.write(answers, json.dumps(["broken", f"{type(error).__name__}: {error}"]).encode() + b"\n")
    os._exit(0)


class Victim:
    """One life; the store's events go to `events`."""

    def __init__(self, directory: Path, orders: Orders, answers: int, go: int, events: Any = None) -> None:
        self._events = events or Quiet()
        self._directory, self._orders, self._answers, self._go = directory, orders, answers, go
        self._due: deque[Callable[[], None]] = deque()
        self._faults = FaultPoints()
        self._chance = random.Random(orders.seed)
        self._failed = False

    def say(self, *words: object) -> None:
        """Send to the parent; small enough to arrive whole, or the pipe keeps the order."""
        data = memoryview(json.dumps(words).encode() + b"\n")
        while data:
            data = data[os.write(self._answers, data) :]

    def run(self) -> None:
        """Run one life."""
        if self._orders.early:
            self._arm()
        try:
            store = LogStore.open(
                self._directory, StoreSettings(**self._orders.settings), clock=ManualClock(), faults=self._faults,
                schedule=self._due.append, log=self._events,
            )  # fmt: skip
        except CorruptLog as error:
            self.say("corrupt", error.position, str(error))
            return
        except OSError as error:
            self.say("refused", error.errno)
            return
        if self._orders.read_only:
            survey(store)  # it records the damage it meets, and the index thread determines how far it extends
            store._site.thread.drain()
            self.say("read", survey(store))
            self.say("appended", self._append_some(store))
            return
        self.say("opened", report(store))
        os.read(self._go, 1)
        self._arm()
        ledger = store.state.get(state_kinds.LEDGER, b"sink")
        number = int(ledger[0]) + 1 if ledger else 0
        stop = number + self._orders.close_after if self._orders.close_after else 10**9
        while number < stop and self._step(store, number):
            number += 1
        if not self._failed:
            store.close()
            self._turn()
            self.say("closed", store.end_position)

    def _arm(self) -> None:
        orders = self._orders
        if orders.slow_flush:
            self._faults.arm("log.fsync", lambda: time.sleep(self._chance.random() * 0.004), times=None)
        if orders.fault:
            name, kind, after = orders.fault
            if kind == "kill":
                self._faults.arm(name, lambda: os.kill(os.getpid(), signal.SIGKILL), after=after)
            else:
                number = getattr(errno, kind)
                self._faults.arm(name, OSError(number, os.strerror(number)), after=after, times=3)

    def _step(self, store: LogStore, number: int) -> bool:
        """Do operation `number`; False when the store is dead."""
        for _ in range(1000):
            try:
                self._write(store, number)
                store.maintain(0)
                self._turn()
            except StoreFull:
                self.say("full")
                store.maintain(0)
                self._turn()
                time.sleep(0.001)
            except StoreFailed:
                self._failed = True
                self.say("failed")
                try:
                    store.append(message([0], b"no"))
                except StoreFailed:
                    return False
                raise AssertionError("an append was taken after the failure") from None
            else:
                return True
        return False

    def _write(self, store: LogStore, number: int) -> None:
        done = operation(number, self._orders.workload)
        ledger = store.state.get(state_kinds.LEDGER, b"sink")
        if not ledger or int(ledger[0]) < number:
            doomed = store.queues.find(done.deleted) if done.deleted else None
            if doomed is not None:
                store.queues.delete([doomed])
            names = done.names()
            ids = dict(zip(names, store.queues.open_all(names), strict=True))
            end = store.append(*done.messages(number, ids), changes=done.changes).end_position
            store.when_confirmed(end, lambda error: self.say("lost" if error else "confirmed", end, number))
        if done.loose:
            loose = store.queues.open(b"loose")
            store.append(*[message([loose], b"loose") for _ in range(done.loose)])

    def _turn(self) -> None:
        while self._due:
            self._due.popleft()()

    def _append_some(self, store: LogStore) -> list[list[int]]:
        """Append a message to some queues; return (queue, offset) of what is confirmed."""
        names = sorted(name for name, _ in store.state.items(state_kinds.QUEUE) if name)[:5]
        queues = [queue for name in names if (queue := store.queues.find(name)) is not None]
        if not queues:
            return []
        try:
            made = store.append(*[message([queue], b"loose") for queue in queues])
        except StoreFull:
            return []
        while store.confirm_position < made.end_position:
            self._turn()
        return [list(pair) for pair in zip(queues, made.offsets, strict=True)]


def survey(store: LogStore) -> dict[str, Any]:
    """What readers get from a damaged store: per queue its bounds, (offset, position) of records, unreadable spans."""
    queues = {}
    for name, _ in list(store.state.items(state_kinds.QUEUE)):
        queue = store.queues.find(name) if name else None
        if queue is None:
            continue
        at, high = store.reading.bounds(queue)
        low, found, missing = at, [], []
        while at < high:
            try:
                result = store.reading.read(queue, at, 1 << 20, 1 << 40)
            except UnreadableOffsets as error:
                span = (error.queue, error.first_offset, error.next_offset)
            else:
                span = None
            if span is not None:
                assert span[:2] == (queue, at), (span, queue, at)
                assert at < span[2] <= high, (span, high)
                missing.append([at, span[2]])
                at = span[2]
                continue
            bases = result.bases or range(result.first_offset, result.first_offset + len(result.records))
            found += [
                [int(base), RecordView(record).position] for base, record in zip(bases, result.records, strict=True)
            ]
            assert result.next_offset > at, (queue, at)
            at = result.next_offset
        queues[queue] = [low, high, found, missing]
    return {
        "queues": queues, "end": store.end_position, "epoch": store.epoch,
        "quarantined": [[each.start, each.end] for each in store.quarantined],
    }  # fmt: skip


def report(store: LogStore) -> dict[str, Any]:
    """Everything visible to a reader, for the judge."""
    queues = {}
    for name, _ in list(store.state.items(state_kinds.QUEUE)):
        queue = store.queues.find(name) if name else None
        if queue is None:
            continue
        low, high = store.reading.bounds(queue)
        records = store.reading.read(queue, low, 1 << 20, 1 << 40).records
        places = [RecordView(record, 0).position for record in records]
        queues[queue] = [name.decode(), low, high, store.reading.next_offset(queue), places]
    state = [
        [kind, key.decode("latin-1"), value.decode("latin-1"), position]
        for kind in state_kinds.NAMES
        for key, (value, position) in store.state.items(kind)
    ]
    retained = {}
    for topic, (_, position) in store.state.items(state_kinds.RETAINED):
        record = store.reading.read_at(position)
        is_there = isinstance(record, memoryview)
        retained[topic.decode()] = header_of(RecordView(record, 0)).producer_seq if is_there else None
    return {
        "begin": store.begin_position, "end": store.end_position, "confirm": store.confirm_position,
        "epoch": store.epoch, "queues": queues, "state": state, "retained": retained,
    }  # fmt: skip
