"""A group of three stores walked through appends, crashes, elections and truncations by one seed.

Two of the nodes are in sync: what both have flushed is confirmed, and either may be master. The third only learns, so
that more of its log has to be truncated. Every node is killed, loses what it had not flushed, is closed, promoted and
truncated in any order; bytes travel in parts of any size.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from broker.replication.epochs import Epochs, Extent, truncation_point
from broker.store.keys.key_store import KeyQuestion
from broker.store.log.epoch_file import epoch_at, recovered
from broker.store.log_store import LogStore
from broker.store.state.state_kinds import StateChange
from remoting.protocol.records.record import RecordView
from tests.sim.disk import crash_copy
from tests.sim.keyed import keyed_message
from tests.sim.log_judge import read_log
from tests.sim.replicas import ReplicaBench, log_bytes, pull
from tests.sim.stores import Silent, drain, mixed

IN_SYNC = (0, 1)
NAMES = [b"q%d" % number for number in range(6)]
KEYS = [b"key%d" % number for number in range(4)]
SEGMENT = 8 * 1024
TAILS = ({"index_tail_entries": 32}, {"index_tail_entries": 256}, {"index_tail_entries": 4096})


class Walk:
    """One walk in `place`; `run` makes steps and checks."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place = place
        self.chance = random.Random(seed)
        self.epoch = 1
        self.lives = 0
        self.number = 0
        self.confirmed = 0
        self.proof = (0, b"")
        """What was confirmed of the log: from where on, and the bytes."""
        self.settings: dict[str, Any] = {
            "segment_size_bytes": SEGMENT, "snapshot_log_bytes": self.chance.choice([2_000, 20_000, 1 << 26]),
            "key_index_entries": 64, "retention_size_bytes": self.chance.choice([0, 0, 3 * SEGMENT]),
            **self.chance.choice(TAILS),
        }  # fmt: skip
        self.master = 0
        self.nodes = [self._node(name) for name in (0, 1, 2)]
        self.nodes[0].reopen_as(epoch=1)

    def _node(self, name: int) -> ReplicaBench:
        return ReplicaBench(self._folder(name), role="replica", log=Silent(), **self.settings)

    def _folder(self, name: int) -> Path:
        self.lives += 1
        return self.place / f"node{name}-{self.lives}"

    @property
    def store(self) -> LogStore:
        """The master's."""
        return self.nodes[self.master].store

    def run(self, steps: int) -> None:
        """Make this many steps, and check everything now and then."""
        acts = (
            (self.append, 12), (self.change, 4), (self.pull, 12), (self.flush, 8), (self.confirm, 6),
            (self.upkeep, 4), (self.expire, 1), (self.reopen, 2), (self.crash, 3), (self.elect, 3), (self.check, 1),
        )  # fmt: skip
        for _ in range(steps):
            self.chance.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()
        self.check()
        for node in self.nodes:
            node.close()

    # -- what a master does

    def append(self) -> None:
        """Messages: alone, many, as one; retained, batches, with keys."""
        chance, store = self.chance, self.store
        queues = store.queues.open_all(chance.sample(NAMES, chance.randint(1, 4)))
        _, messages = mixed(chance, queues, chance.choice([1, 3, 10, 40]), chance.choice([10, 400, 2000]), self.number)
        for _ in range(chance.choice([0, 0, 1, 5])):
            keys = b" ".join(chance.sample(KEYS, chance.randint(1, 2)))
            messages.append(keyed_message([chance.choice(queues)], b"keyed%d" % self.number, keys=keys))
        self.number += len(messages)
        changes = [self._state() for _ in range(chance.choice([0, 0, 0, 2]))]
        store.append(*messages, atomic=chance.random() < 0.4, changes=changes)

    def _state(self) -> StateChange:
        value = None if self.chance.random() < 0.3 else b"%d" % self.number
        return StateChange(self.chance.choice((3, 4)), self.chance.choice(KEYS), value)

    def change(self) -> None:
        """State, and queues that are deleted permanently."""
        self.store.append_state([self._state() for _ in range(self.chance.randint(1, 5))])
        if self.chance.random() < 0.2:
            queue = self.store.queues.find(self.chance.choice(NAMES))
            if queue is not None:
                self.store.queues.delete([queue])

    # -- what travels

    def pull(self) -> None:
        """Some of the log, or all of it, goes to one of the others."""
        name = self.chance.choice([each for each in range(3) if each != self.master])
        node = self.nodes[name]
        if node.store.end_position < self.store.begin_position:
            self.connect(name)  # what comes next has expired
        end = self.chance.choice([self.store.end_position, node.store.end_position + 1])
        pull(self.store, node.store, self.chance.choice([1, 300, 5000, 1 << 20]), min(end, self.store.end_position))

    def flush(self) -> None:
        """One of the nodes has flushed."""
        self.chance.choice(self.nodes).flush()

    def confirm(self) -> None:
        """What both have flushed is confirmed; sometimes the third replica is informed."""
        limit = min(self.nodes[name].store.positions.flushed for name in IN_SYNC)
        self.store.positions.limit_confirm(limit)
        for node in self.nodes:
            if node is not self.nodes[self.master] and self.chance.random() < 0.7:
                node.store.positions.limit_confirm(self.store.confirm_position)
        if self.store.confirm_position > self.confirmed and self.store.confirm_position <= limit:
            self.confirmed = self.store.confirm_position
            self.proof = (self.store.begin_position, self.span(self.master, self.store.begin_position, self.confirmed))

    def upkeep(self) -> None:
        """Marks, checkpoints, runs, snapshots."""
        node = self.chance.choice(self.nodes)
        for _ in range(self.chance.choice([1, 1, 5])):
            node.store.maintain(self.number)
            if self.chance.random() < 0.7:
                drain(node.store)
            node.turn()

    def expire(self) -> None:
        """The master and those in sync expire what their retention allows, until nothing more happens."""
        for _ in range(self.chance.choice([5, 15, 30])):
            for name in IN_SYNC:
                node = self.nodes[name]
                if name != self.master:
                    pull(self.store, node.store, 1 << 20)
                node.flush()
                node.store.maintain(self.number)
                drain(node.store)
                node.turn()
            self.confirm()

    # -- what goes wrong

    def reopen(self) -> None:
        """A replica is closed and opened."""
        name = self.chance.choice([each for each in range(3) if each != self.master])
        self.nodes[name].reopen_as(role="replica")
        self.connect(name)

    def crash(self) -> None:
        """A node dies, perhaps with what it had not flushed; the master's death is an election."""
        name = self.chance.randrange(3)
        self._kill(name)
        if name == self.master:
            self._promote(self.chance.choice(IN_SYNC))
        else:
            self.connect(name)

    def _kill(self, name: int) -> None:
        node, target = self.nodes[name], self._folder(name)
        crash_copy(node.store, target, self.chance.randrange(1 << 30))
        node.close()
        shutil.rmtree(node.directory)
        node.directory = target
        node.open(role="replica")

    def elect(self) -> None:
        """Another master, or the same again in a new epoch; the former one is closed in good order or killed."""
        if self.chance.random() < 0.5:
            self._kill(self.master)
        else:
            self.nodes[self.master].reopen_as(role="replica")
        self._promote(self.chance.choice(IN_SYNC))

    def _promote(self, name: int) -> None:
        self.epoch += self.chance.randint(1, 3)
        node = self.nodes[name]
        if self.chance.random() < 0.3:
            self._kill(name)
        node.reopen_as(epoch=self.epoch)
        self.master = name
        assert node.store.end_position >= self.confirmed, "a member in sync has what was confirmed"
        since = max(self.proof[0], node.store.begin_position)
        assert self.span(name, since, self.confirmed) == self.proof[1][since - self.proof[0] :]
        node.store.positions.limit_confirm(self.confirmed)
        if self.chance.random() < 0.3:  # the master ends before any other node knows it
            self._promote(self.chance.choice(IN_SYNC)) if self._step_down(name) else None
            return
        for other in range(3):
            if other != name:
                self.connect(other)

    def _step_down(self, name: int) -> bool:
        if self.chance.random() < 0.5:
            self.append()  # what will be lost
        self.nodes[name].reopen_as(role="replica")
        return True

    def connect(self, name: int) -> None:
        """A replica finds where its log and the master's diverge and truncates it there."""
        node, master = self.nodes[name].store, self.store
        point = truncation_point(_extent(node), _extent(master))
        if point is None:
            node.replica.reset(master.begin_position)
        else:
            node.replica.truncate(point)
            assert node.end_position == point
        end, begin = node.end_position, max(node.begin_position, master.begin_position)
        assert self.span(name, begin, end) == self.span(self.master, begin, end), (
            "below the truncated end the logs agree"
        )
        assert not self.span(name, end, 1 << 40).strip(b"\0"), "after it there is nothing"

    # -- what must hold

    def span(self, name: int, first: int, end: int) -> bytes:
        """The bytes [first, end) of a node's log in its files, as far as there are any."""
        parts = []
        for base, data in log_bytes(self.nodes[name].directory).items():
            at = int(base)
            parts.append(data[max(0, first - at) : max(0, end - at)])
        return b"".join(parts)

    def check(self) -> None:
        """All caught up, all confirmed: the same bytes, queues, state and keys, as from the log alone."""
        for name in (0, 1, 2):
            if name != self.master:
                self.connect(name)
                pull(self.store, self.nodes[name].store, 4096)
        for node in self.nodes:
            node.flush()
            node.store.positions.limit_confirm(self.store.end_position)
            assert node.store.confirm_position == self.store.end_position
        self.confirmed = self.store.end_position
        begin = max(node.store.begin_position for node in self.nodes)
        self.proof = (begin, self.span(self.master, begin, self.confirmed))
        assert [self.span(name, begin, self.confirmed) for name in (0, 1, 2)] == [self.proof[1]] * 3
        for name in (0, 1, 2):
            told = self._told(self.nodes[name].store, begin)
            assert told == self._rebuilt(self.nodes[name], begin), name
            assert told == self._told(self.store, begin), name

    def _rebuilt(self, node: ReplicaBench, begin: int) -> dict[str, Any]:
        """What a store shows that has nothing but the log."""
        target = self._folder(9)
        target.mkdir()
        shutil.copytree(node.directory / "log", target / "log")
        shutil.copy(node.directory / "FORMAT", target)
        bench = ReplicaBench(target, role="replica", log=Silent(), **self.settings)
        bench.store.positions.limit_confirm(bench.store.end_position)
        told = self._told(bench.store, begin)
        for seen in read_log(target):
            assert seen.position < begin or seen.epoch == epoch_at(told["epochs"], seen.position)[0], seen.position
        bench.close()
        shutil.rmtree(target)
        return told

    @staticmethod
    def _told(store: LogStore, begin: int) -> dict[str, Any]:
        """What a store shows of the log from `begin` on."""
        queues = {}
        for name in NAMES:
            queue = store.queues.find(name)
            if queue is not None:
                low, high = store.reading.bounds(queue)
                records = store.reading.read(queue, low, 1 << 20, 1 << 30).records if high > low else []
                young = [bytes(each) for each in records if RecordView(each).position >= begin]
                queues[name] = (queue, high, store.reading.next_offset(queue), young)
        keys: dict[bytes, list[bytes]] = {}
        if store.keys is not None:
            for key in KEYS:
                records = store.keys.find(KeyQuestion(b"t", key, count_max=1000)).records
                views = [RecordView(record) for record in records]
                keys[key] = [bytes(view.body) for view in views if view.position >= begin]
        held = recovered(store.replica.epochs, begin, store.end_position - 1)
        epochs = [(epoch, max(start, begin)) for epoch, start in held]
        return {"queues": queues, "state": store.state.copy(), "keys": keys, "epochs": epochs}


def _extent(store: LogStore) -> Extent:
    return Extent(store.begin_position, store.end_position, Epochs(store.replica.epochs))
