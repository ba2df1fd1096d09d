"""The replicas' port over real sockets and stores: who gets the log, and what the master may confirm."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.replication import frames
from broker.replication.frames import Refusal, Transfer, Welcome
from broker.replication.proof import prove
from remoting.protocol.errors import LocalMisuse
from runtime.clock import ManualClock
from tests.sim.replicas import log_bytes
from tests.support.replication import NONCE, Caller, Master, Replica, append, until


async def test_messages_are_confirmed_when_every_member_has_them(tmp_path: Path) -> None:
    """A replica in the set holds the confirm position until its disk has the bytes, which are the master's."""
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
    assert master.server.sent_bytes >= end
    await replica.stop()
    await master.stop()


async def test_heartbeats_carry_the_confirm_position(tmp_path: Path) -> None:
    """A replica shows what is confirmed although no further byte comes."""
    master = await Master(tmp_path / "master", 3).start(members=(1, 2))
    replica = Replica(tmp_path / "replica", master)
    end = append(master.store, 5)
    await until(lambda: replica.store.confirm_position == end)
    await replica.stop()
    await master.stop()


async def test_who_does_not_lead_says_so(tmp_path: Path) -> None:
    """The port is open in every role."""
    master = await Master(tmp_path / "master", 3).start()
    master.server.step_down("somebody else leads")
    caller = await Caller.dial(master)
    answer = await caller.hello()
    assert isinstance(answer, Refusal)
    assert answer.reason == frames.NOT_MASTER
    assert await caller.read() is None
    assert master.server.refused == 1
    await master.stop()


async def test_stepping_down_ends_the_streams(tmp_path: Path) -> None:
    """No connection outlives the leadership it was made in."""
    master = await Master(tmp_path / "master", 3).start()
    caller = await Caller.dial(master)
    assert isinstance(await caller.hello(), Welcome)
    master.server.step_down("over")
    assert await caller.read() is None
    await until(lambda: not master.server.connections)
    await master.stop()


@pytest.mark.parametrize(
    ("access_key", "secret", "is_taken"), [("key", "secret", True), ("key", "wrong", False), ("other", "secret", False)]
)
async def test_an_access_key_is_proved(tmp_path: Path, access_key: str, secret: str, is_taken: bool) -> None:
    """Whoever names a key must know its secret, also on this machine."""
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
    """A replica that knows a newer master is refused, and the broker hears of it."""
    master = await Master(tmp_path / "master", 3).start()
    answer = await (await Caller.dial(master)).hello(epoch=9)
    assert isinstance(answer, Refusal)
    assert answer.reason == frames.OLD_EPOCH
    assert master.superseded == [9]
    await master.stop()


async def test_a_newer_connection_takes_the_place_of_the_older(tmp_path: Path) -> None:
    """A replica that was cut off and comes back is one replica."""
    master = await Master(tmp_path / "master", 3).start()
    first, second = await Caller.dial(master), await Caller.dial(master)
    assert isinstance(await first.hello(), Welcome)
    assert isinstance(await second.hello(), Welcome)
    assert await first.read() is None
    assert len(master.leader.replicas()) == 1
    await master.stop()


async def test_who_falls_silent_is_closed_and_gets_heartbeats_before(tmp_path: Path) -> None:
    """A stream says something now and then, and expects an answer."""
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
    """Retention went past the replica: it is told where the log begins and starts anew."""
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


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    """The error says which port, and for what."""
    master = await Master(tmp_path / "master", 3).start()
    with pytest.raises(OSError, match=f"listen for replicas on 127.0.0.1:{master.server.port}"):
        await Master(tmp_path / "other", 3).start(port=master.server.port)
    await master.stop()
