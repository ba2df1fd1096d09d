"""What goes wrong: processes, machines, disks, network, clocks; one fault after the other, some at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.whole.group import Cluster, Process

PAUSE_S = (0.05, 3.0)
"""Between two faults."""
SKEW_MS_MAX = 60_000


class Faults:
    """Draws faults until it is told to end."""

    def __init__(self, cluster: Cluster, chooses: tuple[str, ...] = ()) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.counts: Counter[str] = Counter()
        self._is_on = False
        kinds: dict[str, Callable[[], None]] = {
            "kill": lambda: self._die(power=False),
            "power cut": lambda: self._die(power=True),
            "power cut in the middle": self._cut_in_the_middle,
            "all lose power": self._all_lose_power,
            "pause": self._pause,
            "isolated": self._isolate,
            "one way cut": self._one_way,
            "slow network": self._slow_network,
            "slow disk": self._slow_disk,
            "clock jump": self._jump,
            "stopped in order": self._stop,
        }
        self._kinds = {name: kinds[name] for name in chooses or kinds}

    def begin(self) -> None:
        """The first one comes soon."""
        self._is_on = True
        self.world.after(self.world.chance.uniform(*PAUSE_S), self._next)

    def end(self) -> None:
        """Nothing fails any more; what is down starts."""
        self._is_on = False
        self.cluster.network.heal()
        self.cluster.disks.flush_s.clear()
        self.cluster.disks.spare()
        for each in self.cluster.processes:
            each.go_on()
            self._start(each)

    def _next(self) -> None:
        if not self._is_on:
            return
        name = self.world.chance.choice(list(self._kinds))
        self.counts[name] += 1
        self._kinds[name]()
        self.world.after(self.world.chance.uniform(*PAUSE_S) * self.world.chance.choice((0.1, 1)), self._next)

    def _victim(self) -> Process:
        chance, master = self.world.chance, self.cluster.master()
        if master is not None and chance.random() < 0.4:
            return master
        return chance.choice(self.cluster.brokers if chance.random() < 0.7 else self.cluster.processes)

    def _start(self, process: Process) -> None:
        if not process.is_up:
            process.begin()

    def _soon(self, process: Process) -> None:
        """It is started again after a while, by whatever watches over it."""
        self.world.after(
            self.world.chance.choice((0.05, 0.5, 3.0)) * self.world.chance.random(), lambda: self._start(process)
        )

    def _die(self, *, power: bool) -> None:
        process = self._victim()
        process.die(power=power)
        self._soon(process)

    def _cut_in_the_middle(self) -> None:
        process = self._victim()
        if process.is_up:
            self.cluster.disks.cut_after(process, self.world.chance.choice((1, 3, 10, 40)))

    def cut(self, process: Process) -> None:
        """Its power went off in the middle of an operation."""
        process.die(power=True)
        self._soon(process)

    def _all_lose_power(self) -> None:
        chance = self.world.chance
        whom = chance.choice((self.cluster.brokers, self.cluster.controllers, self.cluster.processes))
        for each in whom:
            each.die(power=True)
            self._soon(each)

    def _pause(self) -> None:
        process = self._victim()
        boot = process.boot
        process.pause()
        self.world.tell(process.name, "stands still")

        def go_on() -> None:
            if process.boot == boot:
                self.world.tell(process.name, "goes on")
                process.go_on()

        self.world.after(self.world.chance.choice((0.1, 1.0, 5.0)) * self.world.chance.random(), go_on)

    def _pairs(self, process: Process, *, here: bool, there: bool) -> list[tuple[str, str]]:
        others = [each.address for each in self.cluster.processes if each is not process]
        chosen = [each for each in others if self.world.chance.random() < 0.7] or others
        found = [(process.address, each) for each in chosen] if here else []
        return found + ([(each, process.address) for each in chosen] if there else [])

    def _cut_for_a_while(self, pairs: list[tuple[str, str]]) -> None:
        cuts = self.cluster.network.cuts
        cuts.update(pairs)
        self.world.after(
            self.world.chance.choice((0.3, 2.0, 6.0)) * self.world.chance.random(),
            lambda: cuts.difference_update(pairs),
        )

    def _isolate(self) -> None:
        process = self._victim()
        self.world.tell(process.name, "is isolated")
        self._cut_for_a_while(self._pairs(process, here=True, there=True))

    def _one_way(self) -> None:
        process, here = self._victim(), self.world.chance.random() < 0.5
        self.world.tell(process.name, f"is cut one way, sending {here}")
        self._cut_for_a_while(self._pairs(process, here=here, there=not here))

    def _slow_network(self) -> None:
        process, delays = self._victim(), self.cluster.network.delay_s
        pairs = self._pairs(process, here=True, there=True)
        for each in pairs:
            delays[each] = self.world.chance.choice((0.005, 0.05, 0.3))
        self.world.after(3 * self.world.chance.random(), lambda: [delays.pop(each, None) for each in pairs])

    def _slow_disk(self) -> None:
        process, flush_s = self._victim(), self.cluster.disks.flush_s
        flush_s[process.name] = self.world.chance.choice((0.005, 0.03, 0.2))
        self.world.after(4 * self.world.chance.random(), lambda: flush_s.pop(process.name, None))

    def _jump(self) -> None:
        process = self._victim()
        process.clock.offset_ns = self.world.chance.randint(-SKEW_MS_MAX, SKEW_MS_MAX) * 1_000_000

    def _stop(self) -> None:
        process = self._victim()
        process.stop_in_order(lambda: self._soon(process))
