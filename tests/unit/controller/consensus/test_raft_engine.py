"""Three engines of either kind on real sockets: they answer, survive each other, and say when they cannot."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from controller.consensus import dledger_engine, raft_engine
from controller.consensus.dledger_engine import DledgerEngine
from controller.consensus.engine import ConsensusFailed, NotLeading, OutcomeUnknown, RaftSettings
from controller.consensus.members import ControllerNode
from controller.consensus.raft_engine import RaftEngine
from remoting.protocol.errors import LocalMisuse
from tests.sim.raft.machines import Words
from tests.support.ports import free_port

SECRET = b"a secret of the controllers"
SETTINGS = RaftSettings(snapshot_entries=20)
ENGINES = {"dledger": DledgerEngine, "pysyncobj": RaftEngine}


async def until(condition):
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.005)


class Three:
    """Their directories and the engines that run on them."""

    def __init__(self, folder, kind):
        self.folder = folder
        self.kind = kind
        self.members = {each: ControllerNode(each, "127.0.0.1", 1, free_port()) for each in ("n1", "n2", "n3")}
        self.engines = {}
        self.machines = {}

    def make(self, node_id, settings=SETTINGS):
        machine = self.machines[node_id] = Words()
        return ENGINES[self.kind](self.folder / node_id, machine, self.members, node_id, SECRET, settings)

    async def start(self, *node_ids):
        for node_id in node_ids:
            self.engines[node_id] = self.make(node_id)
            await self.engines[node_id].start()

    async def stop(self, node_id):
        await self.engines.pop(node_id).stop()

    async def leader(self):
        await until(lambda: sum(each.is_leader for each in self.engines.values()) == 1)
        return next(each for each in self.engines.values() if each.is_leader)


@pytest.fixture(params=ENGINES)
def kind(request):
    return request.param


@pytest.fixture
async def three(tmp_path, kind):
    """Running."""
    made = Three(tmp_path, kind)
    await made.start("n1", "n2", "n3")
    await until(lambda: all(each.ready for each in made.engines.values()))
    yield made
    for node_id in list(made.engines):
        await made.stop(node_id)


async def test_they_answer_and_go_on_without_one(three):
    """In order; after the loss of the leader; with a newcomer that catches up by a snapshot."""
    leader, changes = await three.leader(), []
    leader.on_leadership(changes.append)
    words = [b"%d" % number for number in range(50)]
    assert await asyncio.gather(*map(leader.propose, words)) == list(range(1, 51))
    other = next(each for each in three.engines.values() if each is not leader)
    await until(lambda: other.leader == leader.node_id)
    with pytest.raises(NotLeading) as caught:
        await other.propose(b"no")
    assert caught.value.leader == leader.node_id
    await three.stop(leader.node_id)
    assert changes == [False]
    with pytest.raises(NotLeading):
        await leader.barrier()
    new = await three.leader()
    await new.propose(b"after")
    await three.start(leader.node_id)
    again = three.engines[leader.node_id]
    await until(lambda: three.machines[again.node_id].words == [*words, b"after"])
    await until(lambda: again.status()["applied"] == new.status()["applied"])
    assert new.status()["snapshots"] > 0


@pytest.mark.parametrize("kind", ["pysyncobj"])
async def test_an_emptied_one_waits_and_says_for_whom(three, monkeypatch, capsys):
    """In its status and, again and again, in its log; it is ready once every other controller has answered."""
    for each in (dledger_engine, raft_engine):
        monkeypatch.setattr(each, "REMINDER_SECONDS", 0.01)
    leader = await three.leader()
    await leader.propose(b"word")
    emptied, away = (each for each in three.members if each != leader.node_id)
    await three.stop(away)
    await three.stop(emptied)
    shutil.rmtree(three.folder / emptied)
    await three.start(emptied)
    waits = f"its directory was empty: it does not vote before it has reached {away}, so start it"
    await until(lambda: three.engines[emptied].obstacle == waits)
    assert not three.engines[emptied].ready
    assert three.engines[emptied].status()["obstacle"] == waits
    await until(lambda: "controller_waits" in capsys.readouterr().err)
    await three.start(away)
    await until(lambda: three.engines[emptied].ready)
    assert three.engines[emptied].obstacle == ""
    assert three.machines[emptied].words == [b"word"]


async def test_without_a_majority_nothing_is_answered(three):
    """The outcome of the proposal is unknown, and soon there is no leader."""
    leader = await three.leader()
    for node_id in list(three.engines):
        if node_id != leader.node_id:
            await three.stop(node_id)
    with pytest.raises((OutcomeUnknown, NotLeading)):
        await leader.propose(b"lost")
    await until(lambda: not leader.is_leader)


async def test_a_file_that_cannot_be_written_ends_it(three, monkeypatch):
    """The failure is reported, the node sends nothing more, and the others elect a leader."""
    leader = await three.leader()

    def fail():
        raise OSError("no space")

    files = leader._node._files.journal if three.kind == "dledger" else leader._thread._node._face
    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises((NotLeading, OutcomeUnknown)):
        await leader.propose(b"x")
    assert isinstance(await asyncio.wait_for(leader.until_failed(), 40), ConsensusFailed)
    del three.engines[leader.node_id]
    new = await three.leader()
    await new.propose(b"y")
    await leader.stop()


async def test_what_keeps_it_from_starting_is_raised(tmp_path, kind):
    """A port that is taken, files that are damaged, a directory of others; never started it stops easily."""
    three = Three(tmp_path, kind)
    await three.start("n1")
    three.members["n2"] = ControllerNode("n2", "127.0.0.1", 1, three.members["n1"].raft_port)
    with pytest.raises(OSError, match="address already in use"):
        await three.make("n2").start()
    await three.stop("n1")
    (tmp_path / "n1" / "vote").write_bytes(b"?")
    with pytest.raises(LocalMisuse, match="damaged"):
        await three.make("n1").start()
    (tmp_path / "n1" / "vote").unlink()
    (tmp_path / "n1" / "journal").write_bytes(b"?")
    with pytest.raises(LocalMisuse, match="damaged"):
        await three.make("n1").start()
    await three.make("n3").stop()
