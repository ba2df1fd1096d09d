"""What goes wrong in a group of which only the log is simulated: one fault after the other, some at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.rooms.group import Group, Machine

PAUSE_S = (0.05, 1.2)
"""Between two faults."""


class Faults:
    """Draws faults until it is told to end."""

    def __init__(self, group: Group) -> None:
        self.group, self.world, self.chance = group, group.world, group.chance
        self.counts: Counter[str] = Counter()
        self._is_on = False
        self._kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "all killed": (3, lambda: self._die(power=False)),
            "all lose power": (2, lambda: self._die(power=True)),
            "power cut in the middle": (2, self._cut_in_the_middle),
            "another master": (4, self._fail_over),
            "stopped in order": (1, self._stop),
            "pause": (2, self._pause),
            "replicas away": (4, self._replicas_away),
            "slow disk": (1, self._slow_disk),
            "slow network": (1, self._slow_network),
            "connections break": (2, self._break),
        }

    def begin(self) -> None:
        """The first one comes soon."""
        self._is_on = True
        self.world.after(self.chance.uniform(*PAUSE_S), self._next)

    def end(self) -> None:
        """Nothing fails any more; what is down starts."""
        self._is_on = False
        self.group.disks.flush_s.clear()
        self.group.disks.spare()
        self.group.delay_s = 0.0
        self.group.machine.go_on()
        self.group.begin()

    def _next(self) -> None:
        if not self._is_on:
            return
        names = list(self._kinds)
        (name,) = self.chance.choices(names, [self._kinds[each][0] for each in names])
        self.counts[name] += 1
        self._kinds[name][1]()
        self.world.after(self.chance.uniform(*PAUSE_S) * self.chance.choice((0.1, 1)), self._next)

    def _soon(self) -> None:
        """The group is there again after a while; which of its logs leads is open."""
        self.world.after(self.chance.choice((0.02, 0.2, 1.0)) * self.chance.random(), self._back)

    def _back(self) -> None:
        if self.group.machine.is_up:
            return
        if self._is_on and self.chance.random() < 0.5:
            self.group.succeed(self.chance.choice(("cut", "cut", "copied")))
        self.group.begin()

    def _die(self, *, power: bool) -> None:
        self.group.machine.die(power=power)
        self._soon()

    def _fail_over(self) -> None:
        if self.group.machine.is_up:
            self.group.machine.die(power=False)
            self.group.succeed(self.chance.choice(("cut", "cut", "copied")))
            self._soon()

    def _cut_in_the_middle(self) -> None:
        if self.group.machine.is_up:
            self.group.disks.cut_after(self.group.machine, self.chance.choice((1, 3, 10, 40)))

    def cut(self, machine: Machine) -> None:
        """Its power went off in the middle of an operation."""
        machine.die(power=True)
        self._soon()

    def _stop(self) -> None:
        if not self.group.machine.is_paused:
            self.group.machine.stop_in_order()
            self._soon()

    def _pause(self) -> None:
        machine, boot = self.group.machine, self.group.machine.boot
        machine.pause()
        self.world.tell(machine.name, "stands still")

        def go_on() -> None:
            if machine.boot == boot:
                machine.go_on()

        self.world.after(self.chance.choice((0.1, 1.0, 4.0)) * self.chance.random(), go_on)

    def _replicas_away(self) -> None:
        self.group.machine.replicas_leave(self.chance.choice((0.1, 1.0, 5.0)) * self.chance.random())

    def _slow_disk(self) -> None:
        name, flush_s = self.group.machine.name, self.group.disks.flush_s
        flush_s[name] = self.chance.choice((0.005, 0.03, 0.2))
        self.world.after(3 * self.chance.random(), lambda: flush_s.pop(name, None))

    def _slow_network(self) -> None:
        self.group.delay_s = self.chance.choice((0.02, 0.2, 1.0))
        self.world.after(3 * self.chance.random(), lambda: setattr(self.group, "delay_s", 0.0))

    def _break(self) -> None:
        for line in list(self.group.lines):
            if self.chance.random() < 0.5:
                line.end("reset")
