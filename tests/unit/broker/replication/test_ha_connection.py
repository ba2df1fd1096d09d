"""A replica's socket at its master, before anybody knows whose it is: little memory, little time, no place for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog

from broker.replication import frames, ha_server
from broker.replication.frames import Refusal, Welcome
from runtime.clock import ManualClock
from tests.support.replication import Caller, Master, until


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", frames.encode_ack(frames.Ack(3, 0))])
async def test_what_is_no_replica_is_closed(tmp_path: Path, noise: bytes) -> None:
    """Bytes that are no frames, and frames out of turn."""
    master = await Master(tmp_path / "master", 3).start()
    caller = await Caller.dial(master)
    await caller.read()
    caller.writer.write(noise)
    assert await caller.read() is None
    await master.stop()


async def test_who_never_says_hello_is_closed(tmp_path: Path) -> None:
    """A connection costs nothing for long."""
    clock = ManualClock()
    master = await Master(tmp_path / "master", 3, clock=clock).start()
    caller = await Caller.dial(master)
    await caller.read()
    clock.advance_ms(ha_server.HELLO_MS_MAX)
    assert await caller.read() is None
    assert master.server.refused == 1
    await master.stop()


async def test_time_runs_on_for_a_hello_that_comes_in_pieces(tmp_path: Path) -> None:
    """Progress buys none: a hello is a few hundred bytes."""
    clock = ManualClock()
    master = await Master(tmp_path / "master", 3, clock=clock).start()
    caller = await Caller.dial(master)
    greeting = await caller.read()
    assert isinstance(greeting, frames.Greeting)
    hello = frames.encode_hello(
        frames.Hello(broker=2, epoch=0, begin=0, end=0, nonce=b"n" * 16, cluster="c", group="g"), lambda _: bytes(32)
    )
    for byte in hello[:-1]:
        clock.advance_ms(ha_server.HELLO_MS_MAX // 20)
        caller.writer.write(bytes([byte]))
        await asyncio.sleep(0.001)
    assert await caller.read() is None
    await until(lambda: master.server.refused == 1)
    await master.stop()


@pytest.mark.parametrize("kind", sorted(frames.FROM_REPLICA))
async def test_a_large_frame_of_nobody_is_not_held(tmp_path: Path, kind: int) -> None:
    """That it is announced is enough to end the connection; the clock does not move here."""
    master = await Master(tmp_path / "master", 3, clock=ManualClock()).start()
    caller = await Caller.dial(master)
    await caller.read()
    caller.writer.write(frames.HEAD.pack(frames.MAGIC, kind, 0, 0, 65_536, 0) + bytes(1_024))
    assert await caller.read() is None
    await until(lambda: not master.server.connections)
    await master.stop()


@pytest.mark.parametrize(
    ("access_key", "secret", "permitted"), [("", None, False), ("edge", "secret", False), ("node", "secret", True)]
)
async def test_a_key_of_another_role_gets_no_log(
    tmp_path: Path, access_key: str, secret: str | None, permitted: bool
) -> None:
    """Nor does whoever shows none; both are counted, and said with the key."""
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
        assert master.server.admission.unproven == (0 if permitted else 3)
        await master.stop()
    refused = [entry for entry in logged if entry["event"] == "replica_refused"]
    assert [entry["key"] for entry in refused] == ([] if permitted else [access_key])


async def test_of_too_many_connections_the_oldest_stranger_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas stay, and one more of them comes in however many strangers there are."""
    monkeypatch.setattr(ha_server, "CONNECTIONS_MAX", 3)
    master = await Master(tmp_path / "master", 3).start(members=(1, 2, 3))
    replica = await Caller.dial(master)
    assert isinstance(await replica.hello(), Welcome)
    strangers = [await Caller.dial(master) for _ in range(2)]
    for each in strangers:
        assert isinstance(await each.read(), frames.Greeting)
    second = await Caller.dial(master)
    assert isinstance(await second.hello(broker=3), Welcome)
    assert await strangers[0].read() is None
    assert (len(master.server.connections), master.server.refused) == (3, 1)
    await master.stop()


async def test_replicas_alone_may_be_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the newcomer is closed before a word."""
    monkeypatch.setattr(ha_server, "CONNECTIONS_MAX", 1)
    master = await Master(tmp_path / "master", 3).start()
    first = await Caller.dial(master)
    assert isinstance(await first.hello(), Welcome)
    assert await (await Caller.dial(master)).read() is None
    assert len(master.server.connections) == 1
    await master.stop()
