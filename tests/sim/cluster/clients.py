"""Clients of a simulated group: producers and readers.

A producer appends each message once, to the broker it believes is master; without an answer the outcome is unknown.
A reader asks any broker; with a stale route it asks a former master for a while. A consumer pulls queues from replicas
and masters in turn, but asks no former master, since its routes name none.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from tests.sim.cluster.broker import Broker, Cluster
from tests.sim.cluster.pulls import Pull, answer
from tests.sim.cluster.world import Node

QUEUES = 3


class Producer(Node):
    """Sends one message after another, some several at once; never the same one twice."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        super().__init__(cluster.world, f"p{number}")
        self.cluster = cluster
        self.sent = self.taken = self.refused = 0
        self._number = number
        self._believes = 0
        self._is_done = False
        self.start()
        self.after(cluster.world.chance.choice((1, 8)) * cluster.pace.tick_ms, self._send)

    def finish(self) -> None:
        """Send no more messages."""
        self._is_done = True

    def _send(self) -> None:
        if self._is_done:
            return
        chance = self.world.chance
        for _ in range(1 + (chance.random() < 0.3) * chance.randrange(1, 6)):
            self.sent += 1
            ident = self._number * 1_000_000 + self.sent
            target = self.cluster.brokers[self._believes]
            self.cluster.network.send_once(self.name, target, self._arrived, target, chance.randrange(QUEUES), ident)
        if chance.random() < 0.1:
            self._believes = chance.randrange(len(self.cluster.brokers))
        self.after(self.cluster.pace.tick_ms * (0.08 + 0.5 * chance.random()), self._send)

    def _arrived(self, target: Broker, queue: int, ident: int) -> None:
        """The message arrives at the broker."""
        if target.holds(lambda: self._arrived(target, queue, ident)):
            return
        if target.serving is None:
            hint = target.following.master.ident - 1 if target.following is not None else None
            self.cluster.network.send(target.name, self, self._moved, hint)
            return
        target.serving.append(
            queue, ident, lambda is_safe: self.cluster.network.send(target.name, self, self._answered, is_safe)
        )

    def _answered(self, is_safe: bool) -> None:
        if is_safe:
            self.taken += 1
        else:
            self.refused += 1

    def _moved(self, hint: int | None) -> None:
        self._believes = hint if hint is not None else self.world.chance.randrange(len(self.cluster.brokers))


class Reader(Node):
    """Asks one broker after another for the end of the visible messages, and lets some of them wait for more.

    Invariant: it has its own random numbers and no network loses its requests, so that the history of a seed is the
    same with readers and without.
    """

    def __init__(self, cluster: Cluster, number: int) -> None:
        super().__init__(cluster.world, f"r{number}")
        self.cluster = cluster
        self.answered = self.refused = 0
        self._chance = random.Random(f"{cluster.world.seed}/{self.name}")
        self.start()
        self._later()

    def _later(self) -> None:
        self.after(self.cluster.pace.tick_ms * (0.1 + 0.6 * self._chance.random()), self._ask)

    def _ask(self) -> None:
        target = self._chance.choice(self.cluster.brokers)
        wait_ms = self.cluster.pace.tick_ms * 6 * self._chance.random() if self._chance.random() < 0.3 else 0.0
        self.world.after(0.2 + 0.8 * self._chance.random(), target.deliver, target.read, wait_ms, self._told)
        self._later()

    def _told(self, end: int | None) -> None:
        if end is None:
            self.refused += 1
        else:
            self.answered += 1


class Consumer(Node):
    """Pulls every queue from its beginning, from a replica or the master, and continues where an answer sends it.

    Invariant: as for `Reader`.
    """

    def __init__(self, cluster: Cluster, number: int) -> None:
        super().__init__(cluster.world, f"c{number}")
        self.cluster = cluster
        self.offsets = [0] * QUEUES
        """Where it continues, by queue."""
        self._chance = random.Random(f"{cluster.world.seed}/{self.name}")
        self.start()
        self._later()

    def _later(self) -> None:
        self.after(self.cluster.pace.tick_ms * (0.1 + 0.4 * self._chance.random()), self._pull)

    def _pull(self) -> None:
        chance, queue = self._chance, self._chance.randrange(QUEUES)
        target = chance.choice(self.cluster.brokers)
        pull = Pull(self.name, queue, self.offsets[queue], 1 + chance.randrange(8))
        told = partial(self._told, queue)
        self.world.after(0.2 + 0.8 * chance.random(), target.deliver, self._arrived, target, pull, told)
        self._later()

    def _arrived(self, target: Broker, pull: Pull, told: Callable[[int | None], None]) -> None:
        """The request arrives, perhaps too late to be waited for."""
        if pull.offset == self.offsets[pull.queue]:
            answer(target, pull, told, lambda: pull.offset == self.offsets[pull.queue])

    def _told(self, queue: int, next_offset: int | None) -> None:
        if next_offset is not None:
            self.offsets[queue] = next_offset
