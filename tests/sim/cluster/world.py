"""One seed decides everything: the clock, the order of events, and the random numbers that all parts draw.

Invariant: nothing in the simulation looks at a real clock, at `hash` of a string, or at a set's order where it matters;
the same seed gives the same history, event by event.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Violation(Exception):
    """A rule that must hold does not; `rule` names it."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class World:
    """Virtual time and the scheduled events."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now = 0.0
        """Milliseconds."""
        self.events = 0
        self.lines: list[str] | None = [] if trace else None
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, delay_ms: float, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function(*arguments)` after a delay."""
        self._number += 1
        heappush(self._heap, (self.now + delay_ms, self._number, function, arguments))

    def run(self, until_ms: float) -> None:
        """Run all events up to a time."""
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            self.now, _, function, arguments = heappop(heap)
            self.events += 1
            function(*arguments)
        self.now = max(self.now, until_ms)

    def tell(self, who: str, what: str) -> None:
        """Record a line for a replay of the seed."""
        if self.lines is not None:
            self.lines.append(f"{self.now:10.2f} {who:4} {what}")


class WorldLog:
    """The product's log as lines of a replay."""

    def __init__(self, world: World, who: str) -> None:
        self._world, self._who = world, who

    def info(self, event: str, **fields: object) -> None:
        """Record a line."""
        self._world.tell(self._who, " ".join([event, *(f"{name}={value}" for name, value in fields.items())]))

    warning = error = info


class Node:
    """A process that can be killed, restarted, and paused."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_up = False
        self.is_paused = False
        self.boot = 0
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def deliver(self, function: Callable[..., None], *arguments: Any) -> None:
        """A message reaches the process, which handles it now or when it continues."""
        if not self.is_up:
            return
        if self.is_paused:
            self._held.append((function, arguments))
        else:
            function(*arguments)

    def after(self, delay_ms: float, function: Callable[..., None], *arguments: Any) -> None:
        """A timer of this process; it dies with it."""
        self.world.after(delay_ms, self._fire, self.boot, function, arguments)

    def _fire(self, boot: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if boot == self.boot:
            self.deliver(function, *arguments)

    def start(self) -> None:
        """The process starts."""
        self.boot += 1
        self.is_up, self.is_paused = True, False
        self._held = []

    def stop(self) -> None:
        """The process ends, with all it had in memory."""
        self.is_up = self.is_paused = False
        self.boot += 1
        self._held = []

    def pause(self) -> None:
        """The process is paused without noticing it."""
        self.is_paused = self.is_up

    def go_on(self) -> None:
        """Everything that arrived during the pause is handled now, in order."""
        self.is_paused = False
        held, self._held = self._held, []
        for at, (function, arguments) in enumerate(held):
            if not self.is_up:
                return
            if self.is_paused:
                self._held = held[at:] + self._held
                return
            function(*arguments)
