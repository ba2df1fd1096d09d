"""The agreed state of one broker group, and the commands that change it, as values and as bytes of the replicated log.

A group has replicas, a master, an epoch and a SyncStateSet. Values are frozen and replaced as a whole, so that any
thread may read one while the next is made. A command carries everything its outcome depends on, the set of live
brokers included, so that applying the same commands in the same order gives the same state on every controller. On the
log: msgpack, one tagged map per command.
Invariant: a master is a known replica and in the SyncStateSet; ids are never assigned twice while the group exists; the
master epoch and the set's epoch never fall; `decode` returns a command of the declared types or raises
RemoteViolation. Pure.

Which replicas are alive, with the content of their last heartbeat: soft state of each controller, never in the log.

Invariant: a replica is reported dead once; only a heartbeat makes it alive again. What a controller presumes alive when
it begins to lead holds the master's place for one time limit, but is never a candidate. Time in which this process
stood still counts as silence of no replica: it moves every deadline.
Pure: time comes in as a number of milliseconds that only grows.

`OwnPause` measures how long this process itself was suspended: without CPU, or stopped, it finds all deadlines passed
at its first tick, and the heartbeats that came meanwhile unread in its sockets. Invariant: only what exceeds twice the
interval between ticks counts as a pause, so that ordinary lateness moves no deadline. Pure: time comes in as a number
of milliseconds that only grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.access.agreement import UserChange
from remoting.protocol.errors import RemoteViolation

FIRST_BROKER_ID = 1


class Replica(msgspec.Struct, frozen=True):
    """One broker of a group. `check_code` proves the owner of the id; the rest is empty until the broker registered."""

    check_code: str
    address: str = ""
    ha_address: str = ""
    boot_id: str = ""


class ReplicaGroup(msgspec.Struct, frozen=True):
    """One broker group."""

    cluster: str
    name: str
    replicas: dict[int, Replica] = {}
    next_id: int = FIRST_BROKER_ID
    master: int | None = None
    master_epoch: int = 0
    """0: there has never been an election."""
    set_epoch: int = 0
    in_sync: tuple[int, ...] = ()
    """The SyncStateSet, rising."""
    epoch_floor: int = 0
    """Highest epoch reported for any replica's log; the next master's is above it."""
    needs_operator: bool = False
    """The last replica in sync may have lost what it acknowledged: only a designated election is possible."""

    def view(self) -> GroupView:
        """The group as brokers and clients see it."""
        replica = self.replicas.get(self.master) if self.master is not None else None
        return GroupView(
            self.cluster,
            self.name,
            self.master,
            replica.address if replica is not None else "",
            replica.ha_address if replica is not None else "",
            self.master_epoch,
            self.set_epoch,
            self.in_sync,
            {broker_id: each.address for broker_id, each in self.replicas.items()},
        )


class GroupView(msgspec.Struct, frozen=True):
    """A group as answers and pushes show it; addresses are empty where there is no master."""

    cluster: str
    name: str
    master: int | None
    master_address: str
    master_ha_address: str
    master_epoch: int
    set_epoch: int
    in_sync: tuple[int, ...]
    addresses: dict[int, str]


def check(group: ReplicaGroup) -> None:
    """Our own bug when it fails: the rules every group obeys after every command."""
    assert group.master is None or group.master in group.in_sync, group
    assert set(group.in_sync) <= set(group.replicas), group
    assert list(group.in_sync) == sorted(set(group.in_sync)), group
    assert all(FIRST_BROKER_ID <= broker_id < group.next_id for broker_id in group.replicas), group
    assert group.master is None or group.master_epoch > 0, group


Name = Annotated[str, Meta(min_length=1, max_length=255)]
BrokerId = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Live(msgspec.Struct, frozen=True):
    """The state of a live replica's log in its last heartbeat."""

    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1
    """Lower wins between equal logs."""


class ApplyBrokerId(msgspec.Struct, frozen=True, tag=True):
    """Assign an id to the broker that shows the check code."""

    cluster: Name
    group: Name
    broker_id: BrokerId
    check_code: Name


class RegisterReplica(msgspec.Struct, frozen=True, tag=True):
    """A replica is there, under this address, since this start of its process."""

    cluster: Name
    group: Name
    broker_id: BrokerId
    address: Name
    ha_address: str = ""
    boot_id: str = ""
    last_epoch: int = -1
    safe: bool = True
    """Nothing it acknowledged can be missing: it was stopped in order, or flushes before it acknowledges."""


class ElectMaster(msgspec.Struct, frozen=True, tag=True):
    """Choose a master among those alive; `broker_id` requests it for itself or is designated; None: neither."""

    cluster: str
    group: Name
    live: dict[int, Live]
    broker_id: int | None = None
    designated: bool = False
    unclean: bool = False
    """Whether a replica that is not in sync may be chosen when none that is lives; loses messages."""


class AlterSyncStateSet(msgspec.Struct, frozen=True, tag=True):
    """The master of an epoch changes its SyncStateSet from the one with this epoch."""

    group: Name
    master: int
    master_epoch: int
    set_epoch: int
    members: tuple[int, ...]
    alive: tuple[int, ...]


class CleanReplicas(msgspec.Struct, frozen=True, tag=True):
    """Forget replicas, all where no id is given; those alive only when forced."""

    cluster: str
    group: Name
    broker_ids: tuple[int, ...]
    alive: tuple[int, ...]
    forced: bool = False


class Barrier(msgspec.Struct, frozen=True, tag=True):
    """No change: once it is applied, everything committed before its request is applied too."""


class ChangeUsers(msgspec.Struct, frozen=True, tag=True):
    """Users and rules made by requests at a broker change; every controller applies them to requests."""

    change: UserChange


class PlaceMqtt(msgspec.Struct, frozen=True, tag=True):
    """MQTT is at a group from now on, if it was at `held` (empty: at none) until now."""

    group: Name
    held: str = ""


Command = (
    ApplyBrokerId
    | RegisterReplica
    | ElectMaster
    | AlterSyncStateSet
    | CleanReplicas
    | Barrier
    | ChangeUsers
    | PlaceMqtt
)


class Outcome(msgspec.Struct, frozen=True):
    """What became of a command: a response code (0: done), why not, and the group as it is now."""

    code: int = 0
    remark: str = ""
    view: GroupView | None = None
    changed: bool = False
    """Whether it concerns brokers and clients: master, epochs, set or addresses."""


_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode(command: Command) -> bytes:
    """The command as bytes of the log."""
    return msgspec.msgpack.encode(command)


def decode(data: bytes) -> Command:
    """The command in these bytes."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteViolation(f"no command of the controllers: {error}") from error


class OwnPause:
    """Watches the ticks of one table of deadlines."""

    __slots__ = ("_interval_ms", "_last_ms")

    def __init__(self, interval_ms: int) -> None:
        """`interval_ms`: how often `tick` is called by a process that runs; 0: pauses are not detected."""
        self._interval_ms = interval_ms
        self._last_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """There is something to watch over from now on: a pause may come before the first tick."""
        if self._last_ms is None:
            self._last_ms = now_ms

    def tick(self, now_ms: int) -> int:
        """Milliseconds by which this tick came too late because the process stood still."""
        last_ms, self._last_ms = self._last_ms, now_ms
        if last_ms is None or not self._interval_ms:
            return 0
        late_ms = now_ms - last_ms - self._interval_ms
        return late_ms if late_ms > self._interval_ms else 0


ReplicaKey = tuple[str, int]
"""(group, broker id)."""


@dataclass(slots=True)
class Life:
    """One replica that shows itself."""

    deadline_ms: int
    live: Live | None
    """None: presumed; this controller has received no heartbeat of it."""
    confirm_offset: int = -1
    channel: object = None
    """The connection of the last heartbeat; its end is the replica's."""
    serves_reads: bool = False
    """Whether readers may ask it while it is a replica."""


class LiveTable:
    """Deadlines of replicas."""

    def __init__(self, timeout_ms: int, tick_interval_ms: int = 0) -> None:
        """`tick_interval_ms`: how often `tick` is called; 0: nothing is taken for a pause of our own."""
        self._timeout_ms = timeout_ms
        self._pause = OwnPause(tick_interval_ms)
        self._lives: dict[str, dict[int, Life]] = {}

    def beat(
        self,
        key: ReplicaKey,
        now_ms: int,
        live: Live,
        *,
        confirm_offset: int = -1,
        channel: object = None,
        timeout_ms: int | None = None,
        serves_reads: bool = False,
    ) -> bool:
        """A heartbeat; True when the replica was not alive before."""
        self._pause.begin(now_ms)
        limit = min(timeout_ms, self._timeout_ms) if timeout_ms is not None and timeout_ms > 0 else self._timeout_ms
        lives = self._lives.setdefault(key[0], {})
        known = lives.get(key[1])
        lives[key[1]] = Life(now_ms + limit, live, confirm_offset, channel, serves_reads)
        return known is None or known.live is None

    def presume(self, key: ReplicaKey, now_ms: int) -> None:
        """Give an unknown replica one time limit to send a heartbeat."""
        self._pause.begin(now_ms)
        self._lives.setdefault(key[0], {}).setdefault(key[1], Life(now_ms + self._timeout_ms, None))

    def channel_lost(self, channel: object) -> list[ReplicaKey]:
        """A connection ended: the replicas that beat on it last are dead at once."""
        return self._remove(lambda life: life.channel is channel)

    def tick(self, now_ms: int) -> list[ReplicaKey]:
        """The replicas whose deadline has passed; they are dead."""
        pause_ms = self._pause.tick(now_ms)
        if pause_ms:
            for lives in self._lives.values():
                for life in lives.values():
                    life.deadline_ms += pause_ms
        return self._remove(lambda life: life.deadline_ms <= now_ms)

    def forget(self, group: str, broker_id: int) -> None:
        """The replica does not belong to its group any more."""
        self._lives.get(group, {}).pop(broker_id, None)

    def alive(self, group: str) -> tuple[int, ...]:
        """Ids of the replicas of a group that are or may be alive."""
        return tuple(sorted(self._lives.get(group, {})))

    def candidates(self, group: str) -> dict[int, Live]:
        """Ids of the replicas that sent heartbeats, with the state of their logs."""
        return {each: life.live for each, life in self._lives.get(group, {}).items() if life.live is not None}

    def readable(self, group: str) -> tuple[int, ...]:
        """Ids of the replicas of a group that sent heartbeats and serve readers."""
        return tuple(sorted(each for each, life in self._lives.get(group, {}).items() if life.serves_reads))

    def life(self, key: ReplicaKey) -> Life | None:
        """All that is known of one replica."""
        return self._lives.get(key[0], {}).get(key[1])

    def _remove(self, is_dead: Callable[[Life], bool]) -> list[ReplicaKey]:
        dead = [(group, each) for group, lives in self._lives.items() for each, life in lives.items() if is_dead(life)]
        for group, each in dead:
            del self._lives[group][each]
        return dead
