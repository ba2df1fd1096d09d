"""Engines on real sockets whose members change at run time: who is taken in, who is refused, and with which words."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from controller.consensus import dledger_engine
from controller.consensus.dledger_engine import DledgerEngine
from controller.consensus.engine import NotLeading, RaftSettings
from controller.consensus.members import ControllerNode
from controller.consensus.raft_engine import RaftEngine
from controller.consensus.roster import COMMAND
from remoting.protocol.errors import LocalMisuse, Refused
from tests.sim.raft.machines import Words
from tests.support.ports import free_port

SECRET = b"a secret of the controllers"
SETTINGS = RaftSettings(snapshot_entries=20)


async def until(condition):
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.005)


def node(node_id):
    return ControllerNode(node_id, "127.0.0.1", 1, free_port())


class Engines:
    """A group of three, and who joins it; each with a folder and a table of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.nodes = {each: node(each) for each in ("n1", "n2", "n3")}
        self.running = {}
        self.machines = {}

    async def start(self, *node_ids, kind=DledgerEngine, known=None):
        for each in node_ids:
            table = {one: self.nodes[one] for one in (known or self.nodes)}
            self.machines[each] = Words()
            self.running[each] = kind(self.folder / each, self.machines[each], table, each, SECRET, SETTINGS)
            await self.running[each].start()

    async def stop(self, *node_ids):
        for each in node_ids:
            await self.running.pop(each).stop()

    async def leader(self):
        await until(lambda: sum(each.is_leader for each in self.running.values()) == 1)
        return next(each for each in self.running.values() if each.is_leader)

    async def change(self, act):
        """Ask the leader until it has done it."""
        async with asyncio.timeout(40):
            while True:
                try:
                    return await act(await self.leader())
                except (NotLeading, Refused):
                    await asyncio.sleep(0.01)

    async def until_named(self, *node_ids, role="voter"):
        """Until the leader has these with their directories, and they vote."""

        def are_named(leader):
            found = {each.place.node_id: each for each in leader.seen()[1]}
            wanted = ("leader", role)
            return all(each in found and found[each].place.identity and found[each].role in wanted for each in node_ids)

        await until(lambda: any(each.is_leader and are_named(each) for each in self.running.values()))

    def empty(self, node_id):
        shutil.rmtree(self.folder / node_id)


@pytest.fixture
async def three(tmp_path):
    """Running, each known by its directory."""
    made = Engines(tmp_path)
    await made.start("n1", "n2", "n3")
    await made.until_named("n1", "n2", "n3")
    yield made
    await made.stop(*made.running)


async def test_one_that_lost_its_disk_is_refused_and_replaced(three):
    """It is told what to do, gets no vote by itself, and has everything after it was removed and added."""
    leader = await three.leader()
    await leader.propose(b"word")
    lost = next(each for each in three.nodes if each != leader.node_id)
    await three.stop(lost)
    three.empty(lost)
    await three.start(lost)
    await until(lambda: f"{COMMAND} replace {lost}" in three.running[lost].obstacle)
    assert not three.running[lost].ready
    await three.change(lambda leader: leader.change(remove=lost))
    await three.change(lambda leader: leader.change(add=three.nodes[lost]))
    await three.until_named(lost)
    await until(lambda: three.running[lost].ready and three.machines[lost].words == [b"word"])
    assert three.running[lost].obstacle == ""


async def test_a_leader_that_stops_lets_another_one_lead_first(three, monkeypatch):
    """It is still there when its lead ends; the last one of them stops without waiting for anybody."""
    monkeypatch.setattr(dledger_engine, "HAND_OVER_S", 40)
    former = await three.leader()
    await former.propose(b"word")
    changes = []
    former.on_leadership(lambda leads: changes.append((leads, bool(former.status()))))
    await three.stop(former.node_id)
    assert changes == [(False, True)]
    successor = await three.leader()
    assert successor is not former
    await successor.propose(b"another")
    assert three.machines[successor.node_id].words == [b"word", b"another"]


async def test_a_directory_that_was_replaced_does_not_come_back(three):
    """A copy of it would vote twice; the one that took its place goes on."""
    leader = await three.leader()
    lost = next(each for each in three.nodes if each != leader.node_id)
    await three.stop(lost)
    await three.change(lambda leader: leader.change(remove=lost))
    await three.start(lost)
    await until(lambda: "was replaced or removed" in three.running[lost].obstacle)
    await three.stop(lost)
    three.empty(lost)
    await three.start(lost)
    await until(lambda: f"{COMMAND} add {lost}@" in three.running[lost].obstacle)
    await three.change(lambda leader: leader.change(add=three.nodes[lost]))
    await three.until_named(lost)


async def test_files_older_than_what_they_promised_are_refused(three, tmp_path):
    """A copy of the directory from before an election is put back: it forgot the vote it gave."""
    leader = await three.leader()
    old, *_ = (each for each in three.nodes if each != leader.node_id)
    await three.stop(old)
    shutil.copytree(tmp_path / old, tmp_path / "copy")
    await three.start(old)
    await until(lambda: three.running[old].leader == leader.node_id)
    await three.stop(leader.node_id)
    new = await three.leader()
    if new.node_id == old:
        await three.start(leader.node_id)
    else:
        await until(lambda: three.running[old].status()["term"] == new.status()["term"])
    await three.stop(old)
    three.empty(old)
    shutil.copytree(tmp_path / "copy", tmp_path / old)
    if leader.node_id not in three.running:
        await three.start(leader.node_id)
    await three.start(old)
    await until(lambda: "are older than what it has shown" in three.running[old].obstacle)


async def test_one_of_another_group_is_refused(three, tmp_path):
    """Its secret is the same, and its node id is known: its directory is of another installation."""
    others = Engines(tmp_path / "others")
    await others.start("n1", "n2", "n3")
    await until(lambda: all(each.seen()[0] for each in others.running.values()))
    await others.stop(*others.running)
    leader = await three.leader()
    lost = next(each for each in three.nodes if each != leader.node_id)
    await three.stop(lost)
    three.empty(lost)
    shutil.copytree(tmp_path / "others" / lost, tmp_path / lost)
    await three.start(lost)
    await until(lambda: "belongs to another group of controllers" in three.running[lost].obstacle)


async def test_more_and_fewer_while_they_decide(three):
    """To five and back to three, those that lead among those that go; nothing is lost, and all know the members."""
    words = []

    async def decide(count=5):
        for _ in range(count):
            words.append(b"%d" % len(words))
            await three.change(lambda leader: leader.propose(words[-1]))

    await decide(30)
    for each in ("n4", "n5"):
        three.nodes[each] = node(each)
        await three.change(lambda leader, each=each: leader.change(add=three.nodes[each]))
        await three.start(each, known=["n1", "n2", each])
        await three.until_named(each)
        await decide()
    for _ in range(2):
        gone = (await three.leader()).node_id
        await three.change(lambda leader, gone=gone: leader.change(remove=gone))
        await three.stop(gone)
        await decide()
    leader = await three.leader()
    assert len(leader.seen()[1]) == 3
    for each in three.running:
        await until(lambda each=each: three.machines[each].words == words)


async def test_what_cannot_be_is_refused_with_the_reason(three):
    """A member again, an address again, two at once, one too many gone."""
    leader = await three.leader()
    with pytest.raises(LocalMisuse, match="n1 is a member already"):
        await leader.change(add=three.nodes["n1"])
    with pytest.raises(LocalMisuse, match="n1 has this address already"):
        await leader.change(add=ControllerNode("n9", "127.0.0.1", 1, three.nodes["n1"].raft_port))
    with pytest.raises(LocalMisuse, match="n9 is no member; they are n1, n2, n3"):
        await leader.change(remove="n9")
    await three.change(lambda leader: leader.change(add=node("n4")))
    with pytest.raises(LocalMisuse, match="n4 is being added: one at a time"):
        await leader.change(add=node("n5"))
    others = [each for each in three.nodes if each != leader.node_id]
    await three.stop(others[0])

    await until(lambda: not next(each for each in leader.seen()[1] if each.place.node_id == others[0]).is_connected)
    with pytest.raises(LocalMisuse, match=f"without {others[1]} too few would run: start {others[0]} first"):
        await leader.change(remove=others[1])


async def test_the_librarys_engine_says_that_it_follows_no_changes(three):
    """Members that were changed at run time are in its files; it does not start with others."""
    leader = await three.leader()
    gone = next(each for each in three.nodes if each != leader.node_id)
    await three.change(lambda leader: leader.change(remove=gone))
    await three.stop(*three.running)
    with pytest.raises(LocalMisuse, match="by changes at run time"):
        await three.start(leader.node_id, kind=RaftEngine)
    del three.running[leader.node_id]
