"""What the fuzzed process writes: operation n is always the same, so that the judge knows the resulting state."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from tests.sim.stores import message

LIGHTS = 30
SESSIONS = 40
TOPICS = 20
RETAIN = 0x0C
BATCH_FORMAT = 1 << 8
"""A body with several messages; the store does not parse it."""
SEQUENCE_STEP = 64
"""Record m of operation n carries the producer sequence n * step + m."""


@dataclass
class Operation:
    """A deletion of a queue, then messages and state changes as one group, then loose messages."""

    deleted: bytes | None
    queues: list[tuple[bytes, ...]]
    bodies: list[bytes]
    counts: list[int]
    """Messages in each record."""
    retained: tuple[bytes, bytes] | None
    changes: list[StateChange] = field(default_factory=list)
    loose: int = 0

    def messages(self, number: int, ids: dict[bytes, int]) -> list[Placed]:
        """The messages of the group."""
        made = []
        for at, (names, body) in enumerate(zip(self.queues, self.bodies, strict=True)):
            topic = self.retained[0] if self.retained and at == 0 else None
            flags = (RETAIN if topic else 0) | (BATCH_FORMAT if self.counts[at] else 0)
            made.append(
                message(
                    [ids[name] for name in names], body, flags=flags, mqtt_topic=topic, count=self.counts[at] or 1,
                    producer_seq=number * SEQUENCE_STEP + at,
                )
            )  # fmt: skip
        return made

    def names(self) -> list[bytes]:
        """Every queue the group needs."""
        return sorted({name for names in self.queues for name in names})


def operation(number: int, seed: int) -> Operation:
    """Operation `number` of the workload `seed`."""
    chance = random.Random(f"{seed}/{number}")
    queues = []
    for _ in range(chance.choice((1, 1, 2, 5, 12))):
        light = b"light%d" % chance.randrange(LIGHTS)
        extra = (b"wild%d" % chance.randrange(4),) if chance.random() < 0.4 else ()
        queues.append((b"parent", light, *extra))
    sizes = (0, 30, 200, 600, 3000)
    bodies = [bytes(chance.choices(range(256), k=4)) * (chance.choice(sizes) // 4) for _ in queues]
    counts = [chance.choice((0, 0, 0, 1, 2, 40)) for _ in queues]
    made = Operation(None, queues, bodies, counts, None, loose=chance.choice((0, 0, 1, 3)))
    if chance.random() < 0.1:
        made.deleted = b"light%d" % chance.randrange(LIGHTS)
    if chance.random() < 0.2:
        made.retained = (b"r/%d" % chance.randrange(TOPICS), bodies[0])
        counts[0] = 0
    made.changes = [StateChange(state_kinds.LEDGER, b"sink", b"%d" % number)]
    if chance.random() < 0.6:
        made.changes.append(StateChange(state_kinds.SESSION, b"s%d" % chance.randrange(SESSIONS), b"v%d" % number))
    if chance.random() < 0.3:
        made.changes.append(StateChange(state_kinds.SESSION, b"s%d" % chance.randrange(SESSIONS), None))
    return made


class Model:
    """The state after the first `number` operations, kept in plain dicts."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.number = 0
        self.sessions: dict[bytes, bytes] = {}
        self.retained: dict[bytes, int] = {}

    def advance(self, number: int) -> None:
        """Apply operations up to and without `number`."""
        assert number >= self.number, (number, self.number)
        for at in range(self.number, number):
            done = operation(at, self._seed)
            for change in done.changes:
                if change.kind == state_kinds.SESSION and change.value is None:
                    self.sessions.pop(change.key, None)
                elif change.kind == state_kinds.SESSION and change.value is not None:
                    self.sessions[change.key] = change.value
            if done.retained and done.retained[1]:
                self.retained[done.retained[0]] = at * SEQUENCE_STEP
            elif done.retained:
                self.retained.pop(done.retained[0], None)
        self.number = number
