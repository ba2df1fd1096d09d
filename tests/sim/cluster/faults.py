"""Which faults occur, when and for how long: drawn from the world's random numbers, mostly aimed at the master."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.cluster.electing import ElectingBroker
from tests.sim.cluster.pace import USUAL
from tests.sim.cluster.world import Node

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker
    from tests.sim.cluster.network import Stream
    from tests.sim.cluster.schedule import Schedule


ORDERLY_SHARE = 0.25
"""Schedules in which brokers are stopped in order too."""
MOVE_SHARE = 0.4
"""Of those stops, where brokers elect: another one is made the master instead, by command."""
DAMAGE_SHARE = 0.3
"""Of those in which one disk may forget something, the share in which one does; all where logs are stored."""


class Faults:
    """The injector of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._world = schedule.world
        self._network = schedule.network
        self._controllers = schedule.controllers
        self._brokers = schedule.cluster.brokers
        self._scale = schedule.pace.tick_ms / USUAL.tick_ms
        """The times below are those of the usual pace."""
        self._is_over = False
        self.count = 0
        self._orderly = random.Random(f"{schedule.world.seed}/orderly")
        """Of its own, so that the history of a seed without such stops is the one it always was."""
        self._damaging = random.Random(f"{schedule.world.seed}/damage")
        """The same."""
        self._kinds: list[tuple[int, Callable[[], str]]] = [
            (5, self._kill),
            (4, self._power_cut),
            (4, self._pause),
            (5, self._cut),
            (3, self._isolate),
            (4, self._reset),
            (3, self._slow_disk),
            (2, self._bad_network),
            (2, self._slow_network),
            (2, self._lose_controller),
            (2, self._mute),
            (1, self._kill_all),
            (1, self._restart_loop),
        ]
        if not self._controllers.nodes:
            self._kinds = [each for each in self._kinds if each[1] not in (self._lose_controller, self._mute)]
        if schedule.has_retention:
            self._kinds.append((4, self._expire))
        if schedule.may_wipe:
            self._kinds.append((1, self._wipe))
        build = schedule.cluster.build
        if build.is_stored and not build.is_async:
            self._kinds.append((4, self._power_cut_at_work))

    def begin(self) -> None:
        """Begin to inject faults."""
        self._next()
        if self._orderly.random() < ORDERLY_SHARE:
            self._stop_in_order()
        share = 1.0 if self._schedule.cluster.build.is_stored else DAMAGE_SHARE
        if self._schedule.has_reserve and self._damaging.random() < share:
            self._world.after(self._scale * 1_500 * self._damaging.random(), self._damage)

    def end(self) -> None:
        """Heal everything: nothing is down, cut, slow or stopped."""
        self._is_over = True
        network = self._network
        network.cut.clear()
        network.loss = network.doubling = network.slow_ms = 0.0
        for node in (*self._brokers, *self._controllers.nodes):
            self._revive(node)
        for broker in self._brokers:
            broker.flush_ms = 0.5
            broker.log.heal()
            if broker.damage is not None and broker.cluster.build.is_stored:
                broker.crash(power=False)  # it reads its log again when it starts, and then once a day
                broker.start()

    def _next(self) -> None:
        if self._is_over:
            return
        kinds = self._kinds
        (what,) = self._world.chance.choices([each for _, each in kinds], [weight for weight, _ in kinds])
        self.count += 1
        self._world.tell("!!", what())
        self._world.after(self._pause_ms(), self._next)

    def _pause_ms(self) -> float:
        chance = self._world.chance
        return self._scale * (60 * chance.random() if chance.random() < 0.35 else 200 + 1_200 * chance.random())

    def _while(self, low: float, high: float) -> float:
        return self._scale * (low + (high - low) * self._world.chance.random() ** 2)

    def _later(self, delay_ms: float, what: Callable[[], None]) -> None:
        self._world.after(delay_ms, lambda: None if self._is_over else what())

    def _revive(self, node: Node) -> None:
        if not node.is_up:
            node.start()
        elif node.is_paused:
            node.go_on()

    def _broker(self) -> Broker:
        master = self._schedule.cluster.master()
        if master is not None and self._world.chance.random() < 0.5:
            return master
        return self._world.chance.choice(self._brokers)

    def _stop_in_order(self) -> None:
        """Now and then a broker, mostly the master, is stopped as for an upgrade, and starts again."""
        if self._is_over:
            return
        chance = self._orderly
        broker = self._schedule.cluster.master() or chance.choice(self._brokers)
        if (
            broker.is_up
            and not broker.is_paused
            and isinstance(broker, ElectingBroker)
            and chance.random() < MOVE_SHARE
        ):
            self.count += 1
            broker.move(chance.choice([each.ident for each in self._brokers if each is not broker]))
        elif broker.is_up and not broker.is_paused:
            self.count += 1
            self._world.tell("!!", f"{broker.name} is to stop")
            broker.stop_in_order()
            back_ms = self._scale * (50 + 2_000 * chance.random() ** 2)
            self._world.after(back_ms, self._return, broker)
        self._world.after(self._scale * 1_500 * chance.random(), self._stop_in_order)

    def _return(self, broker: Broker) -> None:
        if broker.is_leaving:
            self._world.after(self._scale * 50, self._return, broker)
        else:
            self._revive(broker)

    # -- kinds --------------------------------------------------------------------------------------------------------

    def _may_lose_power(self, broker: Broker) -> bool:
        """Whether all that counts is elsewhere too: what is only in memory needs another machine that keeps running."""
        if not self._schedule.cluster.build.is_async:
            return True
        in_sync = self._controllers.view().in_sync
        return any(each is not broker and each.safe for each in self._brokers if each.ident in in_sync)

    def _kill(self, *, power: bool = False) -> str:
        broker = self._broker()
        power = power and self._may_lose_power(broker)
        broker.crash(power=power)
        self._later(self._while(20, 4_000), lambda: self._revive(broker))
        return f"{'power cut' if power else 'kill'} of {broker.name}"

    def _power_cut(self) -> str:
        return self._kill(power=True)

    def _power_cut_at_work(self) -> str:
        """Between two steps of what a broker does to its disk, also while it starts or cuts its log."""
        broker = self._broker()
        broker.log.platter.fuse = 1 + int(60 * self._world.chance.random() ** 2)
        if self._world.chance.random() < 0.5:
            broker.crash(power=False)
            self._later(self._while(20, 1_000), lambda: self._revive(broker))
        return f"power of {broker.name} goes after {broker.log.platter.fuse} more flushes"

    def _kill_all(self) -> str:
        power = self._world.chance.random() < 0.5 and not self._schedule.cluster.build.is_async
        for broker in self._brokers:
            broker.crash(power=power)
            self._later(self._while(20, 2_000), lambda broker=broker: self._revive(broker))
        return "power cut of all" if power else "kill of all"

    def _restart_loop(self) -> str:
        broker = self._broker()
        for number in range(3):
            self._later(number * 400 * self._scale, lambda: broker.crash(power=False))
            self._later((number * 400 + 150) * self._scale, lambda: self._revive(broker))
        return f"{broker.name} in a restart loop"

    def _pause(self) -> str:
        broker = self._broker()
        broker.pause()
        self._later(self._while(100, 5_000), broker.go_on)
        return f"{broker.name} stands still"

    def _cut(self) -> str:
        chance = self._world.chance
        nodes = [*self._brokers, *self._controllers.nodes, *self._schedule.producers]
        first = self._broker()
        second = chance.choice([node for node in nodes if node is not first])
        pairs = [(first.name, second.name), (second.name, first.name)]
        if chance.random() < 0.5:
            pairs = [chance.choice(pairs)]
        return self._cut_pairs(pairs)

    def _isolate(self) -> str:
        first = self._broker()
        with_clients = self._world.chance.random() < 0.5
        others = [*self._brokers, *self._controllers.nodes, *(self._schedule.producers if with_clients else ())]
        names = [node.name for node in others if node is not first]
        return self._cut_pairs([(first.name, name) for name in names] + [(name, first.name) for name in names])

    def _mute(self) -> str:
        """The controllers receive from a broker, but it receives nothing from them; another may stop as well."""
        broker, other = self._broker(), self._world.chance.choice(self._brokers)
        if other is not broker and self._world.chance.random() < 0.7:
            self._later(self._while(100, 1_200), other.pause)
            self._later(self._while(1_300, 3_000), other.go_on)
        return self._cut_pairs([(node.name, broker.name) for node in self._controllers.nodes])

    def _cut_pairs(self, pairs: list[tuple[str, str]]) -> str:
        self._network.cut.update(pairs)
        self._later(self._while(100, 5_000), lambda: self._network.cut.difference_update(pairs))
        return f"cut {pairs[0]} and {len(pairs) - 1} more"

    def _reset(self) -> str:
        streams = self._network.streams = [each for each in self._network.streams if any(each.open)]
        if not streams:
            return "no connection to break"
        stream = self._world.chance.choice(streams)
        for end in (0, 1):
            stream.network.world.after(0, self._break, stream, end)
        return f"connection of {stream.nodes[0].name} to {stream.nodes[1].name} breaks"

    @staticmethod
    def _break(stream: Stream, end: int) -> None:
        side, node = stream.sides[end], stream.nodes[end]
        if stream.open[end] and side is not None and node.boot == stream.boots[end]:
            stream.open[end] = False
            node.deliver(side.on_closed)

    def _slow_disk(self) -> str:
        broker = self._broker()
        usual_ms, broker.flush_ms = broker.usual_flush_ms, self._while(20, 600)
        self._later(self._while(200, 4_000), lambda: setattr(broker, "flush_ms", usual_ms))
        return f"disk of {broker.name}: {broker.flush_ms:.0f} ms a flush"

    def _bad_network(self) -> str:
        network = self._network
        chance = self._world.chance
        network.loss, network.doubling = 0.02 + 0.5 * chance.random() ** 2, 0.3 * chance.random()

        def heal() -> None:
            network.loss = network.doubling = 0.0

        self._later(self._while(200, 3_000), heal)
        return f"loss {network.loss:.2f}"

    def _slow_network(self) -> str:
        network = self._network
        network.slow_ms = self._while(5, 300)
        self._later(self._while(200, 3_000), lambda: setattr(network, "slow_ms", 0.0))
        return f"delay up to {network.slow_ms:.0f} ms"

    def _lose_controller(self) -> str:
        leader = self._controllers.leader
        node = leader or self._world.chance.choice(self._controllers.nodes)
        if self._world.chance.random() < 0.5:
            node.stop()
        else:
            node.pause()
        self._later(self._while(300, 4_000), lambda: self._revive(node))
        return f"controller {node.name} is lost"

    def _expire(self) -> str:
        master = self._schedule.cluster.master()
        if master is None or master.is_paused or not master.log.starts:
            return "nothing expires"
        log = master.log
        log.expire(log.begin + int((log.confirm - log.begin) * self._world.chance.random()))
        return f"{master.name} begins at {log.begin}"

    def _wipe(self) -> str:
        broker = self._broker()
        others = [each for each in self._controllers.view().in_sync if each != broker.ident]
        if not others or not self._are_sound():
            return "no disk to lose"
        broker.crash(power=True)
        broker.log.wipe()
        broker.safe, broker.saved_epoch = False, 0
        self._later(self._while(20, 2_000), lambda: self._revive(broker))
        return f"{broker.name} gets another disk"

    def _are_sound(self) -> bool:
        """Whether no broker has lost anything that it does not have again."""
        return all(each.safe and each.admitted and each.damage is None for each in self._brokers)

    def _damage(self) -> None:
        """Now and then a disk forgets something, mostly the master's, while another broker in sync has all of it."""
        if self._is_over:
            return
        chance = self._damaging
        broker = self._schedule.cluster.master() if chance.random() < 0.6 else chance.choice(self._brokers)
        starts = broker.log.may_rot() if broker is not None else ()
        if broker is not None and starts and self._are_sound() and len(self._controllers.view().in_sync) > 1:
            self.count += 1
            broker.damaged(chance.choice(starts))
            self._world.tell("!!", f"the log of {broker.name} is damaged at {broker.damage}")
        self._world.after(self._scale * 2_000 * chance.random(), self._damage)
