"""Which fault comes when, from one seed: the same seed and cluster give the same plan.

A fault has its targets, its duration and the quiet time after it. Faults of brokers and of
controllers are also combined: then both last at the same time.
Invariant: no plan contains faults that no replication can survive (the only copy of a log is never wiped).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ALWAYS = ("kill", "pause", "restart_loop", "kill_most", "pause_most", "kill_role", "kill_all", "leave")
OF_DISKS = frozenset({"wipe", "remove_broker", "lost_tail", "lost_tails", "lost_epochs", "bit_flip", "left_behind"})
"""Those of the disks of brokers."""
OF_CONTROLLERS = frozenset({"wipe_controller", "torn_journal", "remove_controller"})
OF_SEEDS = frozenset({"lost_tail", "lost_tails", "lost_epochs", "bit_flip", "torn_journal"})
"""Those that draw for themselves."""
TIMES = {
    "kill": (0.0, 3.0), "kill_most": (0.0, 3.0), "kill_role": (0.0, 3.0), "kill_all": (0.0, 2.0), "pause": (0.5, 6.0),
    "reset": (0.0, 0.0), "lost_tail": (0.0, 2.0), "lost_tails": (0.0, 2.0), "lost_epochs": (0.0, 2.0),
    "bit_flip": (0.0, 2.0), "learner_anew": (0.0, 3.0), "left_behind": (0.0, 0.0),
    "torn_journal": (0.0, 2.0), "wipe_controller": (0.0, 2.0), "pause_long": (10.0, 60.0), "rolling": (0.0, 0.0),
    "remove_controller": (0.0, 2.0), "remove_broker": (0.0, 2.0),
}  # fmt: skip
OTHER_TIMES = (1.0, 5.0)
CALM = (0.5, 2.0)
WEIGHTS = {"broker": 5, "controller": 3, "proxy": 2, "learner": 1}


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: str
    targets: tuple[str, ...]
    lasts_s: float
    calm_s: float
    details: dict[str, Any] = field(default_factory=dict)
    together: Fault | None = None
    """A second one at the same time."""


class Plan:
    """Endless faults for a cluster."""

    def __init__(self, seed: int, roles: dict[str, str], kinds: frozenset[str], *, scale: float = 1.0) -> None:
        """``roles``: node -> role; ``kinds`` beyond those that signals can do; ``scale`` shortens or stretches all."""
        self._chance = random.Random(seed)
        self._roles = roles
        self._kinds = [*ALWAYS, *sorted(kinds)]
        self._scale = scale

    def faults(self) -> Iterator[Fault]:
        """One after the other: first each kind once, in random order, then at random."""
        first = list(self._kinds)
        self._chance.shuffle(first)
        while True:
            kind = first.pop() if first else self._chance.choice(self._kinds)
            fault = self._fault(kind, self._role_for(kind))
            if fault.kind in ("kill", "pause") and self._chance.random() < 0.3:
                other = "controller" if self._roles[fault.targets[0]] == "broker" else "broker"
                second = self._fault(self._chance.choice(("kill", "pause")), other)
                fault = Fault(fault.kind, fault.targets, fault.lasts_s, fault.calm_s, fault.details, second)
            yield fault

    def _role_for(self, kind: str) -> str:
        if kind in OF_DISKS:
            return "broker"
        if kind in OF_CONTROLLERS:
            return "controller"
        if kind == "learner_anew":
            return "learner"
        if kind in ("partial_cut", "slow_disk", "full_disk"):
            return self._chance.choice(("broker", "controller"))
        present = [role for role in WEIGHTS if role in self._roles.values()]
        return self._chance.choices(present, [WEIGHTS[role] for role in present])[0]

    def _fault(self, kind: str, role: str) -> Fault:
        nodes = [name for name, own in self._roles.items() if own == role]
        low, high = TIMES.get(kind, OTHER_TIMES)
        lasts, calm = self._chance.uniform(low, high) * self._scale, self._chance.uniform(*CALM) * self._scale
        targets = self._targets(kind, nodes)
        details = self._details(kind, targets) if kind not in OF_SEEDS else {"seed": self._chance.randrange(1 << 30)}
        return Fault(kind, targets, round(lasts, 3), round(calm, 3), details)

    def _targets(self, kind: str, nodes: list[str]) -> tuple[str, ...]:
        match kind:
            case "kill_role" | "lost_tails":
                return tuple(nodes)
            case "kill_most" | "pause_most":
                return tuple(self._chance.sample(nodes, len(nodes) // 2 + 1))
            case "kill_all" | "rolling":
                return tuple(self._roles)
            case "ring" | "bridge":
                return tuple(self._chance.sample(list(self._roles), len(self._roles)))
            case _:
                return (self._chance.choice(nodes),)

    def _details(self, kind: str, targets: tuple[str, ...]) -> dict[str, Any]:
        match kind:
            case "restart_loop" | "flap":
                return {"times": self._chance.randint(2, 4)}
            case "partial_cut":
                return {"others": [self._chance.choice([name for name in self._roles if name not in targets])]}
            case "loss":
                return {"share": self._chance.choice((0.3, 0.8)), "seed": self._chance.randrange(1 << 30)}
            case "clock_jump":
                return {"seconds": self._chance.choice((-60.0, -5.0, 5.0, 60.0))}
            case "slow_disk":
                return {"seconds": round(self._chance.uniform(0.01, 0.4), 3)}
            case "slow_network":
                return {"kilobits": self._chance.choice((1_000, 4_000, 16_000)), "wait_ms": 400}
            case "delay":
                return {"seconds": round(self._chance.uniform(0.02, 0.3), 3)}
            case _:
                return {}
