"""A master's ends of its replicas' connections without sockets: bytes and time in, bytes and ends out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.replication import replica_streams
from broker.replication.epochs import Epochs
from broker.replication.frames import (
    FROM_MASTER,
    NO_PROOF,
    NOT_MASTER,
    Ack,
    Decoder,
    Frame,
    Greeting,
    Hello,
    Ready,
    Refusal,
    Transfer,
    Welcome,
    encode_ack,
    encode_hello,
    encode_leave,
    encode_ready,
)
from broker.replication.host import StreamHost
from broker.replication.leader import SMALL_BYTES, Acknowledge, Leader, LeaderSettings, SyncStateSet
from broker.replication.replica_streams import ReplicaStream, ReplicaStreams
from broker.store.append.raw_part import RawPart
from runtime.logs import get_logger

EPOCH = 5


class MemoryLog:
    """A log of zeros, all of one epoch, as a store that flushes when it is told to."""

    def __init__(self) -> None:
        self.begin_position = self.end_position = self.confirm_position = self.kept = 0
        self.epochs = [(EPOCH, 0)]
        self.limit: int | None = 0
        self.looked_at: list[int] = []
        self.positions = self.replica = self
        self._written: list[Callable[[int], None]] = []
        self._kept: list[Callable[[int], None]] = []

    def on_written(self, listener: Callable[[int], None]) -> None:
        self._written.append(listener)

    def on_kept(self, listener: Callable[[int], None]) -> None:
        self._kept.append(listener)

    def limit_confirm(self, limit: int | None) -> None:
        self.limit = limit

    def raw(self, position: int, bytes_max: int) -> RawPart | None:
        data = memoryview(bytes(min(bytes_max, self.end_position - position)))
        return RawPart(position, 0, 1 << 30, EPOCH, data) if data else None

    def examine(self, position: int) -> None:
        self.looked_at.append(position)

    def append(self, size: int) -> None:
        self.end_position += size
        for listener in self._written:
            listener(self.end_position)

    def flush(self) -> None:
        self.kept = self.end_position
        for listener in self._kept:
            listener(self.kept)


class World:
    """The process that the streams run in, and a master if it is to be one."""

    def __init__(self, *, leads: bool = True) -> None:
        self.now_ms = 0
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []
        host = StreamHost(
            now_ms=lambda: self.now_ms, later=lambda *timer: self.later.append(timer), soon=self.soon.append,
            nonce=lambda: bytes(16), chance=lambda: 0.0, log=get_logger("test"),
        )  # fmt: skip
        self.streams = ReplicaStreams(host, keys={}, open_to_all=False, superseded=lambda _epoch: None)
        self.log = MemoryLog()
        if leads:
            self.lead()

    def lead(self) -> None:
        """Be the master from now on."""
        leader = Leader(
            1, EPOCH, 0, SyncStateSet((1, 2), 1), Acknowledge(), LeaderSettings(pause_bytes=50),
            cluster="c", group="g", confirm=0, now_ms=0,
        )  # fmt: skip
        self.streams.lead(leader, self.log)

    def turn(self) -> None:
        """What was put off until the end of the turn."""
        due, self.soon[:] = list(self.soon), []
        for callback in due:
            callback()


class Socket:
    """A replica's connection as the streams have it."""

    def __init__(self, world: World, *, is_near: bool = True) -> None:
        self.end = ""
        self._decoder = Decoder(FROM_MASTER)
        self._said: list[Frame] = []
        stream = world.streams.opened(self, "peer:1", is_near=is_near)
        self._stream = stream

    @property
    def stream(self) -> ReplicaStream:
        assert self._stream is not None
        return self._stream

    def send(self, head: bytes, data: bytes | memoryview = b"") -> None:
        self._said += self._decoder.feed(head + bytes(data))

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = self.end or "aborted"

    def heard(self) -> list[Frame]:
        """Frames since the last call."""
        said, self._said = self._said, []
        return said

    def hello(self, broker: int = 2) -> None:
        self.stream.received(encode_hello(Hello(broker, 0, 0, 0, bytes(16), "c", "g"), lambda _: NO_PROOF))

    def copies(self) -> None:
        """Shake hands, and have nothing yet."""
        self.hello()
        self.stream.received(encode_ready(Ready(EPOCH, 0)) + encode_ack(Ack(EPOCH, 0)))
        assert [type(each) for each in self.heard()] == [Greeting, Welcome]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_pieces_in_which_bytes_arrive_do_not_matter(size: int) -> None:
    world = World()
    socket = Socket(world)
    said = encode_hello(Hello(2, 0, 0, 0, bytes(16), "c", "g"), lambda _: NO_PROOF) + encode_ready(Ready(EPOCH, 0))
    world.log.append(30)
    for at in range(0, len(said), size):
        socket.stream.received(said[at : at + size])
    assert [type(each) for each in socket.heard()] == [Greeting, Welcome, Transfer]
    socket.stream.received(encode_ack(Ack(EPOCH, 30)))
    assert world.log.limit == 0, "not flushed here"
    world.log.flush()
    assert world.log.limit == 30


def test_a_broker_that_does_not_lead_says_so_and_closes() -> None:
    world = World(leads=False)
    socket = Socket(world)
    socket.hello()
    answer = socket.heard()[1]
    assert isinstance(answer, Refusal)
    assert answer.reason == NOT_MASTER
    assert (socket.end, world.streams.refused) == ("closed", 1)


def test_what_a_replica_comes_for_is_searched_for_damage() -> None:
    """It may have refused it before: a master learns of that no other way."""
    world = World()
    world.log.append(100)
    socket = Socket(world)
    socket.hello()
    socket.stream.received(encode_ready(Ready(EPOCH, 40)))
    assert world.log.looked_at == [40]


def test_a_broker_about_to_lead_lets_its_replicas_wait() -> None:
    """They are welcomed in the turn in which it leads; connections from before have ended, and one that breaks the
    rules does so then too."""
    world = World(leads=False)
    before = Socket(world)
    world.streams.expect()
    assert before.end == "aborted"
    waiting, impatient, silent = Socket(world), Socket(world), Socket(world)
    for socket in (waiting, impatient):
        socket.hello()
        assert [type(each) for each in socket.heard()] == [Greeting]
    impatient.hello()
    impatient.stream.ended("closed")
    assert impatient.end == "aborted"
    world.lead()
    assert [type(each) for each in waiting.heard()] == [Welcome]
    assert (waiting.end, silent.end, impatient.heard()) == ("", "", [])
    silent.hello(3)
    assert [type(each) for each in silent.heard()] == [Greeting, Welcome]


def test_a_broker_that_does_not_come_to_lead_sends_them_away() -> None:
    world = World(leads=False)
    world.streams.expect()
    waiting = Socket(world)
    waiting.hello()
    world.streams.step_down("it is a replica after all")
    assert waiting.end == "aborted"
    late = Socket(world)
    late.hello()
    assert isinstance(late.heard()[1], Refusal)


def test_little_data_under_load_waits_for_the_end_of_a_pause() -> None:
    world = World()
    socket = Socket(world)
    socket.copies()
    world.log.append(60)
    world.turn()
    world.log.append(10)
    world.turn()
    assert len(socket.heard()) == 1
    ((seconds, paused),) = world.later
    assert seconds == replica_streams.PAUSE_S
    paused()
    (rest,) = socket.heard()
    assert isinstance(rest, Transfer)
    assert (rest.position, len(rest.data)) == (60, 10)


def test_what_waits_for_a_pause_costs_the_turn_nothing() -> None:
    """No replica is looked at for a message that none gets now; what is much, or comes after an answer, is sent."""
    world = World()
    socket = Socket(world)
    socket.copies()
    world.log.append(60)
    world.turn()
    socket.heard()
    world.log.append(10)
    assert not world.soon
    world.log.append(SMALL_BYTES)
    world.turn()
    (much,) = socket.heard()
    assert isinstance(much, Transfer)
    assert (much.position, len(much.data)) == (60, 10 + SMALL_BYTES)
    world.log.append(10)
    assert not world.soon
    socket.stream.received(encode_ack(Ack(EPOCH, 70 + SMALL_BYTES)))
    assert not socket.heard()
    world.later[-1][1]()
    assert len(socket.heard()) == 1
    socket.stream.received(encode_ack(Ack(EPOCH, world.log.end_position)))
    world.log.append(10)
    world.turn()
    assert len(socket.heard()) == 1


def test_a_replica_that_has_everything_is_not_held() -> None:
    """Beside one that lags."""
    world = World()
    slow, quick = Socket(world), Socket(world)
    slow.copies()
    quick.hello(3)
    quick.stream.received(encode_ready(Ready(EPOCH, 0)) + encode_ack(Ack(EPOCH, 0)))
    world.log.append(60)
    world.turn()
    slow.heard()
    quick.heard()
    quick.stream.received(encode_ack(Ack(EPOCH, 60)))
    world.log.append(10)
    world.turn()
    assert (len(slow.heard()), len(quick.heard())) == (0, 1)


def test_the_end_of_a_flush_is_nothing_while_replicas_lack_more() -> None:
    world = World()
    socket = Socket(world)
    socket.copies()
    for _ in range(3):
        world.log.append(60)
        world.log.flush()
        assert world.log.limit == 0
    world.turn()
    socket.stream.received(encode_ack(Ack(EPOCH, 120)))
    assert world.log.limit == 120
    socket.stream.received(encode_ack(Ack(EPOCH, 180)))
    world.log.append(60)
    world.turn()
    socket.stream.received(encode_ack(Ack(EPOCH, 240)))
    assert world.log.limit == 180, "not flushed here"
    world.log.flush()
    assert world.log.limit == 240


def test_who_leaves_is_not_waited_for_and_who_is_lost_is_for_a_while() -> None:
    world = World()
    socket = Socket(world)
    socket.copies()
    gone: list[int] = []
    world.streams.on_gone = gone.append
    socket.stream.received(encode_leave())
    socket.stream.ended("closed")
    assert (gone, socket.end, world.streams.open) == ([0], "aborted", {})
    lost = Socket(world)
    lost.copies()
    lost.stream.ended("reset")
    assert gone == [0, LeaderSettings().absence_ms + 1]
    stranger = Socket(world)
    stranger.stream.received(encode_leave())
    assert (stranger.end, len(gone)) == ("aborted", 2), "only a replica leaves"
    world.streams.step_down("it is replaced")
    assert len(gone) == 2


def test_what_a_full_connection_does_not_take_follows_when_there_is_room() -> None:
    world = World()
    socket = Socket(world)
    socket.copies()
    socket.stream.has_room = False
    world.log.append(60)
    world.turn()
    assert not socket.heard()
    socket.stream.resume()
    assert len(socket.heard()) == 1


def test_who_says_nothing_is_sent_away_and_who_stays_silent_too() -> None:
    world = World()
    mute, replica = Socket(world), Socket(world)
    replica.copies()
    world.now_ms = replica_streams.HELLO_MS_MAX - 1
    replica.stream.received(encode_ack(Ack(EPOCH, 0)))
    world.streams.tick()
    assert (mute.end, replica.end) == ("", "")
    world.now_ms += 1
    world.streams.tick()
    assert (mute.end, replica.end) == ("aborted", "")
    world.now_ms += LeaderSettings().silence_ms
    world.streams.tick()
    assert replica.end == "aborted"


def test_a_newer_connection_of_a_broker_ends_the_older() -> None:
    world = World()
    older, newer = Socket(world), Socket(world)
    older.copies()
    newer.copies()
    assert (older.end, newer.end) == ("aborted", "")
    older.stream.ended("closed by the replica")
    assert list(world.streams.open.values()) == [newer.stream]


def test_a_resigned_master_ends_every_connection_and_confirms_nothing_more() -> None:
    world = World()
    socket = Socket(world)
    socket.copies()
    world.log.append(60)
    world.streams.step_down("another epoch")
    world.turn()
    world.log.flush()
    assert (socket.end, socket.heard(), world.log.limit) == ("aborted", [], 0)
    assert Epochs(world.log.epochs).last == EPOCH
