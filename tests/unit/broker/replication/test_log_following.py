"""A replica's end of its connections without sockets: bytes and time in, bytes, dials and what is written out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from broker.replication.follower import Follower, ReplicaIdentity
from broker.replication.frames import (
    FROM_REPLICA,
    NO_PROOF,
    OLD_EPOCH,
    Ack,
    Decoder,
    Frame,
    Greeting,
    Hello,
    Leave,
    Ready,
    Refusal,
    Transfer,
    Welcome,
    encode_ack,
    encode_greeting,
    encode_refusal,
    encode_transfer_head,
    encode_welcome,
)
from broker.replication.host import StreamHost
from broker.replication.log_following import RETRY_S, RETRY_S_MAX, LogFollowing, MasterStream
from broker.store.append.raw_part import RawPart
from broker.store.errors import StoreFailed
from runtime.logs import get_logger

EPOCH, SILENCE_MS = 5, 1_000
WELCOME = encode_welcome(Welcome(EPOCH, 0, 100, [(EPOCH, 0)]), lambda _: NO_PROOF)


def part(position: int, data: bytes, confirm: int = 0) -> bytes:
    transfer = Transfer(EPOCH, 0, position, confirm, 0, 1 << 30, data)
    return encode_transfer_head(transfer) + data


class MemoryLog:
    """A replica's log; what is written is kept when it is told to."""

    def __init__(self) -> None:
        self.begin_position = self.end_position = self.confirm_position = self.kept = 0
        self.epochs: list[tuple[int, int]] = []
        self.damaged: list[int] = []
        """Where damage begins."""
        self.limit: int | None = None
        self.failure: Exception | None = None
        self.positions = self.replica = self
        self._kept: list[Callable[[int], None]] = []

    @property
    def quarantined(self) -> list[int]:
        return [each for each in self.damaged if each >= self.begin_position]

    @property
    def sound_end(self) -> int:
        return min([*self.quarantined, self.end_position])

    def on_written(self, listener: Callable[[int], None]) -> None:
        raise AssertionError(listener)

    def on_kept(self, listener: Callable[[int], None]) -> None:
        self._kept.append(listener)

    def limit_confirm(self, limit: int | None) -> None:
        self.limit = limit

    def raw(self, position: int, bytes_max: int) -> RawPart | None:
        raise AssertionError((position, bytes_max))

    def examine(self, position: int) -> None:
        raise AssertionError(position)

    def append_raw(self, part: RawPart) -> int:
        if self.failure is not None:
            raise self.failure
        self.end_position = part.end
        return part.end

    def truncate(self, position: int) -> None:
        self.end_position = self.kept = position

    def reset(self, position: int) -> None:
        self.begin_position = self.end_position = self.kept = position

    def flush(self) -> None:
        self.kept = self.end_position
        for listener in self._kept:
            listener(self.kept)


class Line:
    """A connection as the stream has it."""

    def __init__(self, address: str, stream: MasterStream) -> None:
        self.address, self.stream = address, stream
        self.is_dropped = False
        self._decoder = Decoder(FROM_REPLICA)
        self._said: list[Frame] = []

    def send(self, head: bytes, data: bytes | memoryview = b"") -> None:
        self._said += self._decoder.feed(head + bytes(data))

    def close(self) -> None:
        self.is_dropped = True

    abort = close

    def heard(self) -> list[Frame]:
        """Frames since the last call."""
        said, self._said = self._said, []
        return said

    def copies(self) -> None:
        """Open it and shake hands."""
        self.stream.opened()
        self.stream.received(encode_greeting(Greeting(bytes(16))) + WELCOME)
        assert [type(each) for each in self.heard()] == [Hello, Ready, Ack]


class Replica:
    """A process that follows a master."""

    def __init__(self, log: MemoryLog | None = None) -> None:
        self.now_ms = 0
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.lines: list[Line] = []
        self.failures: list[Exception] = []
        self.superseded: list[int] = []
        self.log = log or MemoryLog()
        host = StreamHost(
            now_ms=lambda: self.now_ms, later=lambda *timer: self.later.append(timer), soon=self._never,
            nonce=lambda: bytes(16), chance=lambda: 1.0, log=get_logger("test"),
        )  # fmt: skip
        self.following = LogFollowing(
            host, self.log, partial(Follower, ReplicaIdentity(broker=2, cluster="c", group="g")), "a:1", 4,
            silence_ms=SILENCE_MS, dial=self._dial, superseded=self.superseded.append, failed=self.failures.append,
        )  # fmt: skip
        self.following.start()

    def _never(self, callback: Callable[[], object]) -> None:
        raise AssertionError(callback)

    def _dial(self, address: str, stream: MasterStream) -> Line:
        self.lines.append(Line(address, stream))
        return self.lines[-1]

    @property
    def line(self) -> Line:
        return self.lines[-1]

    def end(self, why: str = "gone") -> float:
        """The connection ends; how long until the next one, which is dialled."""
        self.later.clear()
        self.line.stream.ended(why)
        ((seconds, dial),) = self.later
        dial()
        return seconds


def test_parts_are_written_and_acknowledged_once_they_are_kept() -> None:
    replica = Replica()
    replica.line.copies()
    replica.line.stream.received(part(0, b"x" * 60, confirm=40))
    assert (replica.log.end_position, replica.log.limit, replica.line.heard()) == (60, 40, [])
    replica.log.flush()
    assert replica.line.heard() == [Ack(EPOCH, 60)]
    assert (replica.following.connected, replica.following.master_end) == (True, 100)


@pytest.mark.parametrize("begin", [0, 40], ids=["cut", "reset"])
def test_damage_that_expires_before_it_is_cut_off_costs_nothing(begin: int) -> None:
    """What is left of the log is sound; damage behind it is given up on the next connection."""
    log = MemoryLog()
    log.end_position, log.epochs, log.damaged = 100, [(EPOCH, 0)], [16, 80]
    replica = Replica(log)
    replica.line.stream.opened()
    replica.line.stream.received(encode_greeting(Greeting(bytes(16))))
    log.begin_position = 40
    replica.line.stream.received(encode_welcome(Welcome(EPOCH, begin, 100, [(EPOCH, 0)]), lambda _: NO_PROOF))
    (hello,) = replica.line.heard()
    assert isinstance(hello, Hello)
    assert (hello.begin, hello.end, log.end_position, replica.line.is_dropped) == (0, 16, 100, True)
    replica.end()
    replica.line.stream.opened()
    replica.line.stream.received(encode_greeting(Greeting(bytes(16))) + WELCOME)
    hello, ready, _ack = replica.line.heard()
    assert isinstance(hello, Hello)
    assert (hello.begin, hello.end, ready, log.end_position) == (40, 80, Ready(EPOCH, 80), 80)
    assert not replica.failures


def test_pauses_double_while_no_byte_comes() -> None:
    replica = Replica()
    assert [replica.end() for _ in range(5)] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, RETRY_S_MAX, RETRY_S_MAX]
    replica.line.copies()
    replica.line.stream.received(part(0, b"x" * 60))
    assert replica.end() == RETRY_S
    assert not replica.following.connected


def test_a_move_ends_the_connection_and_dials_the_other_address_at_once() -> None:
    replica = Replica()
    replica.line.copies()
    replica.line.stream.received(part(0, b"x" * 40))
    replica.following.move("b:2", 6)
    assert replica.line.is_dropped
    replica.line.stream.received(part(40, b"x" * 60))
    assert replica.log.end_position == 40, "taken from a connection that is over"
    assert replica.end() == 0.0
    assert replica.line.address == "b:2"
    replica.line.stream.opened()
    replica.line.stream.received(encode_greeting(Greeting(bytes(16))))
    (hello,) = replica.line.heard()
    assert isinstance(hello, Hello)
    assert hello.epoch == 6
    replica.line.stream.received(WELCOME)
    assert replica.line.is_dropped, "an older master"


def test_who_is_fenced_off_tells_the_same_master_a_later_epoch() -> None:
    replica = Replica()
    replica.line.copies()
    replica.following.fence(6)
    assert replica.line.is_dropped
    assert replica.end() == 0.0
    assert (replica.line.address, replica.following.epoch) == ("a:1", 6)


def test_a_move_in_a_pause_dials_once() -> None:
    replica = Replica()
    replica.line.stream.ended("gone")
    dial = replica.later[-1][1]
    replica.following.move("b:2", 4)
    dial()
    assert [each.address for each in replica.lines] == ["a:1", "b:2"]


def test_a_silent_master_is_left() -> None:
    replica = Replica()
    replica.line.copies()
    ((seconds, check),) = replica.later
    assert seconds == SILENCE_MS / 1_000
    replica.now_ms = SILENCE_MS - 1
    replica.line.stream.received(part(0, b""))
    replica.now_ms = SILENCE_MS
    check()
    assert not replica.line.is_dropped
    replica.now_ms += SILENCE_MS
    replica.later[-1][1]()
    assert replica.line.is_dropped


def test_what_a_master_does_not_send_ends_the_connection() -> None:
    replica = Replica()
    replica.line.stream.opened()
    replica.line.stream.received(encode_ack(Ack(1, 2)))
    assert replica.line.is_dropped
    assert not replica.failures
    assert replica.end() == RETRY_S


def test_a_refusal_with_a_newer_epoch_is_passed_on() -> None:
    replica = Replica()
    replica.line.stream.opened()
    replica.line.stream.received(encode_greeting(Greeting(bytes(16))) + encode_refusal(Refusal(OLD_EPOCH, 9, "older")))
    assert (replica.superseded, replica.line.stream.reason) == ([9], "older")


def test_a_log_that_fails_is_reported_and_not_used_again() -> None:
    replica = Replica()
    replica.line.copies()
    replica.log.failure = StoreFailed("no disk")
    replica.later.clear()
    replica.line.stream.received(part(0, b"x" * 60))
    assert replica.failures == [replica.log.failure]
    replica.line.stream.ended("aborted")
    assert (replica.later, len(replica.lines)) == ([], 1)


def test_after_the_stop_nothing_is_said_or_written() -> None:
    replica = Replica()
    replica.line.copies()
    replica.line.stream.received(part(0, b"x" * 60))
    replica.following.stop()
    replica.line.stream.received(part(60, b"x" * 40))
    replica.log.flush()
    assert (replica.log.end_position, replica.line.heard()) == (60, [])


def test_a_broker_that_stops_tells_the_master_that_it_follows() -> None:
    replica = Replica()
    replica.line.copies()
    line = replica.line
    replica.following.stop(good_bye=True)
    line.stream.received(part(0, b"x" * 60))
    assert (line.heard(), line.is_dropped, replica.log.end_position) == ([Leave()], True, 0)
    dialling = Replica()
    line = dialling.line
    dialling.following.stop(good_bye=True)
    assert (line.heard(), line.is_dropped) == ([], True)
