"""The replicas' port over real sockets and stores: which peers get the log, and what the master may confirm."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog

from broker.replication import frames, replica_streams
from broker.replication.epochs import Epochs
from broker.replication.frames import FROM_MASTER, Decoder, Refusal, Transfer, Welcome, prove
from broker.replication.replica_streams import Piece, Pieces
from broker.store.log_store import LogStore
from remoting.protocol.errors import LocalMisuse
from tests.sim.replicas import log_bytes
from tests.support.clock import ManualClock
from tests.support.replication import NONCE, Caller, Master, Replica, append, open_store, until


async def test_messages_are_confirmed_when_every_member_has_them(tmp_path: Path) -> None:
    """A replica in the set holds back the confirm position until its disk has the bytes, which are the master's."""
    master = await Master(tmp_path / "master", 3).start(members=(1, 2))
    end = append(master.store, 300)
    await until(lambda: master.store.positions.flushed == end)
    assert master.store.confirm_position == 0
    replica = Replica(tmp_path / "replica", master)
    await until(lambda: master.store.confirm_position == end)
    assert replica.store.positions.flushed == end
    end = append(master.store, 200)
    await until(lambda: master.store.confirm_position == end)
    assert log_bytes(master.directory) == log_bytes(tmp_path / "replica")
    assert replica.store.replica.epochs == master.store.replica.epochs
    assert master.server.streams.sent_bytes >= end
    await replica.stop()
    await master.stop()


async def test_heartbeats_carry_the_confirm_position(tmp_path: Path) -> None:
    """A replica shows what is confirmed although no more bytes come."""
    master = await Master(tmp_path / "master", 3).start(members=(1, 2))
    replica = Replica(tmp_path / "replica", master)
    end = append(master.store, 5)
    await until(lambda: replica.store.confirm_position == end)
    await replica.stop()
    await master.stop()


async def test_a_broker_that_does_not_lead_says_so(tmp_path: Path) -> None:
    """The port is open in every role."""
    master = await Master(tmp_path / "master", 3).start()
    master.server.streams.step_down("somebody else leads")
    caller = await Caller.dial(master)
    answer = await caller.hello()
    assert isinstance(answer, Refusal)
    assert answer.reason == frames.NOT_MASTER
    assert await caller.read() is None
    assert master.server.streams.refused == 1
    await master.stop()


async def test_stepping_down_ends_the_streams(tmp_path: Path) -> None:
    """No connection outlives the term it was made in."""
    master = await Master(tmp_path / "master", 3).start()
    caller = await Caller.dial(master)
    assert isinstance(await caller.hello(), Welcome)
    master.server.streams.step_down("over")
    assert await caller.read() is None
    await until(lambda: not master.server.streams.open)
    await master.stop()


@pytest.mark.parametrize(
    ("access_key", "secret", "is_taken"), [("key", "secret", True), ("key", "wrong", False), ("other", "secret", False)]
)
async def test_an_access_key_is_proved(tmp_path: Path, access_key: str, secret: str, is_taken: bool) -> None:
    """A peer that names a key must know its secret, also on this machine."""
    master = await Master(tmp_path / "master", 3, keys={"key": "secret"}).start()
    answer = await (await Caller.dial(master)).hello(secret, access_key=access_key)
    if is_taken:
        assert isinstance(answer, Welcome)
        assert answer.proof == prove("secret", NONCE, answer.signed)
    else:
        assert isinstance(answer, Refusal)
        assert answer.reason == frames.NO_PROOF_GIVEN
    await master.stop()


async def test_a_newer_epoch_is_reported(tmp_path: Path) -> None:
    """A replica that knows a newer master is refused, and the broker is notified."""
    master = await Master(tmp_path / "master", 3).start()
    answer = await (await Caller.dial(master)).hello(epoch=9)
    assert isinstance(answer, Refusal)
    assert answer.reason == frames.OLD_EPOCH
    assert master.superseded == [9]
    await master.stop()


async def test_a_newer_connection_replaces_the_older(tmp_path: Path) -> None:
    """A replica that was cut off and returns is one replica."""
    master = await Master(tmp_path / "master", 3).start()
    first, second = await Caller.dial(master), await Caller.dial(master)
    assert isinstance(await first.hello(), Welcome)
    assert isinstance(await second.hello(), Welcome)
    assert await first.read() is None
    assert len(master.leader.replicas()) == 1
    await master.stop()


async def test_a_silent_replica_is_closed_and_gets_heartbeats_before(tmp_path: Path) -> None:
    """A stream sends something now and then, and expects an answer."""
    clock = ManualClock()
    master = await Master(tmp_path / "master", 3, clock=clock).start()
    caller = await Caller.dial(master)
    assert isinstance(await caller.hello(), Welcome)
    caller.writer.write(frames.encode_ready(frames.Ready(3, 0)))
    await until(lambda: master.leader.replicas()[0].sent == 0)
    clock.advance_ms(master.leader.settings.heartbeat_ms)
    beat = await caller.read()
    assert isinstance(beat, Transfer)
    assert not len(beat.data)
    clock.advance_ms(master.leader.settings.silence_ms)
    while await caller.read() is not None:
        pass
    await until(lambda: not master.leader.replicas())
    await master.stop()


async def test_bytes_that_have_expired_end_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention passed the replica: it learns where the log begins and starts over."""
    master = await Master(tmp_path / "master", 3).start()
    append(master.store, 3)

    def raw(position: int, bytes_max: int) -> None:
        raise LocalMisuse(f"position {position} has expired, {bytes_max} bytes were wanted")

    monkeypatch.setattr(master.store.replica, "raw", raw)
    caller = await Caller.dial(master)
    assert isinstance(await caller.hello(), Welcome)
    caller.writer.write(frames.encode_ready(frames.Ready(3, 0)))
    answer = await caller.read()
    assert isinstance(answer, Refusal)
    assert answer.reason == frames.EXPIRED
    await master.stop()


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """The error says which port, and for what."""
    master = await Master(tmp_path / "master", 3).start()
    with pytest.raises(OSError, match=f"listen for replicas on 127.0.0.1:{master.server.port}"):
        await Master(tmp_path / "other", 3).start(port=master.server.port)
    await master.stop()


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", frames.encode_ack(frames.Ack(3, 0))])
async def test_what_is_not_a_replica_is_closed(tmp_path: Path, noise: bytes) -> None:
    """Bytes that are no frames, and frames out of turn."""
    master = await Master(tmp_path / "master", 3).start()
    caller = await Caller.dial(master)
    await caller.read()
    caller.writer.write(noise)
    assert await caller.read() is None
    await master.stop()


async def test_a_connection_without_hello_is_closed(tmp_path: Path) -> None:
    """A connection costs nothing for long."""
    clock = ManualClock()
    master = await Master(tmp_path / "master", 3, clock=clock).start()
    caller = await Caller.dial(master)
    await caller.read()
    clock.advance_ms(replica_streams.HELLO_MS_MAX)
    assert await caller.read() is None
    assert master.server.streams.refused == 1
    await master.stop()


async def test_the_deadline_of_a_hello_in_pieces_is_not_extended(tmp_path: Path) -> None:
    """Progress does not extend it: a hello is a few hundred bytes."""
    clock = ManualClock()
    master = await Master(tmp_path / "master", 3, clock=clock).start()
    caller = await Caller.dial(master)
    greeting = await caller.read()
    assert isinstance(greeting, frames.Greeting)
    hello = frames.encode_hello(
        frames.Hello(broker=2, epoch=0, begin=0, end=0, nonce=b"n" * 16, cluster="c", group="g"), lambda _: bytes(32)
    )
    for byte in hello[:-1]:
        clock.advance_ms(replica_streams.HELLO_MS_MAX // 20)
        caller.writer.write(bytes([byte]))
        await asyncio.sleep(0.001)
    assert await caller.read() is None
    await until(lambda: master.server.streams.refused == 1)
    await master.stop()


@pytest.mark.parametrize("kind", sorted(frames.FROM_REPLICA))
async def test_a_large_frame_before_the_hello_is_not_buffered(tmp_path: Path, kind: int) -> None:
    """Its announcement is enough to end the connection; the clock does not move here."""
    master = await Master(tmp_path / "master", 3, clock=ManualClock()).start()
    caller = await Caller.dial(master)
    await caller.read()
    caller.writer.write(frames.HEAD.pack(frames.MAGIC, kind, 0, 0, 65_536, 0) + bytes(1_024))
    assert await caller.read() is None
    await until(lambda: not master.server.streams.open)
    await master.stop()


@pytest.mark.parametrize(
    ("access_key", "secret", "permitted"), [("", None, False), ("edge", "secret", False), ("node", "secret", True)]
)
async def test_a_key_of_another_role_gets_no_log(
    tmp_path: Path, access_key: str, secret: str | None, permitted: bool
) -> None:
    """Nor does a peer without a key; both are counted, and logged with the key."""
    asked: list[str] = []

    def may(key: str) -> bool:
        asked.append(key)
        return key == "node"

    keys = {"edge": "secret", "node": "secret"}
    with structlog.testing.capture_logs() as logged:
        master = await Master(tmp_path / "master", 3, keys=keys, permitted=may).start()
        for _ in range(3):
            answer = await (await Caller.dial(master)).hello(secret, access_key=access_key)
            if permitted:
                assert isinstance(answer, Welcome)
            else:
                assert isinstance(answer, Refusal)
                assert (answer.reason, "no role" in answer.remark) == (frames.NO_PROOF_GIVEN, True)
        assert asked == [access_key] * 3
        assert master.server.streams.admission.unproven == (0 if permitted else 3)
        await master.stop()
    refused = [entry for entry in logged if entry["event"] == "replica_refused"]
    assert [entry["key"] for entry in refused] == ([] if permitted else [access_key])


async def test_of_too_many_connections_the_oldest_unknown_one_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas stay, and one more of them is accepted however many unknown connections there are."""
    monkeypatch.setattr(replica_streams, "CONNECTIONS_MAX", 3)
    master = await Master(tmp_path / "master", 3).start(members=(1, 2, 3))
    replica = await Caller.dial(master)
    assert isinstance(await replica.hello(), Welcome)
    strangers = [await Caller.dial(master) for _ in range(2)]
    for each in strangers:
        assert isinstance(await each.read(), frames.Greeting)
    second = await Caller.dial(master)
    assert isinstance(await second.hello(broker=3), Welcome)
    assert await strangers[0].read() is None
    assert (len(master.server.streams.open), master.server.streams.refused) == (3, 1)
    await master.stop()


async def test_replicas_alone_may_be_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the newcomer is closed without an answer."""
    monkeypatch.setattr(replica_streams, "CONNECTIONS_MAX", 1)
    master = await Master(tmp_path / "master", 3).start()
    first = await Caller.dial(master)
    assert isinstance(await first.hello(), Welcome)
    assert await (await Caller.dial(master)).read() is None
    assert len(master.server.streams.open) == 1
    await master.stop()


PART_BYTES = 1 << 20


def ask(pieces: Pieces, store: LogStore, position: int = 0, bytes_max: int = PART_BYTES) -> Piece:
    """The piece of the log, which is the content of its frame."""
    piece = pieces.at(store, Epochs(store.replica.epochs), position, bytes_max)
    assert piece is not None
    (frame,) = Decoder(FROM_MASTER).feed(piece.head + piece.data)
    assert isinstance(frame, Transfer)
    part = store.replica.raw(position, bytes_max)
    assert part is not None
    assert (frame.epoch, frame.epoch_start, frame.position, frame.confirm) == (1, 0, position, store.confirm_position)
    assert (frame.segment_base, frame.segment_size, frame.data) == (part.segment_base, part.segment_size, part.data)
    return piece


async def test_equal_requests_get_the_same_piece(tmp_path: Path) -> None:
    """Another position, size, end or confirm position makes another piece; a dropped one is made again."""
    store = open_store(tmp_path, epoch=1)
    middle = append(store, 3)
    append(store, 3)
    pieces = Pieces()
    first = ask(pieces, store)
    assert ask(pieces, store) is first
    assert ask(pieces, store, middle) is not first
    assert len(ask(pieces, store, 0, 1).data) < len(first.data)
    first = ask(pieces, store)
    append(store, 1)
    second = ask(pieces, store)
    assert len(second.data) > len(first.data)
    pieces.forget()
    assert ask(pieces, store) is not second
    assert pieces.at(store, Epochs(store.replica.epochs), store.end_position, PART_BYTES) is None
    store.close()


async def test_a_confirm_position_that_moved_is_sent(tmp_path: Path) -> None:
    """The head carries it."""
    store = open_store(tmp_path, epoch=1)
    store.positions.limit_confirm(0)
    end = append(store, 3)
    pieces = Pieces()
    first = ask(pieces, store)
    store.positions.limit_confirm(None)
    store.positions.take_flushed(store._log.sync())
    assert store.confirm_position == end
    assert ask(pieces, store) is not first
    store.close()
