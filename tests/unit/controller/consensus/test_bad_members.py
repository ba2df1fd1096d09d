"""Real sockets: a member that has the secret and sends what it must not gets one log line, one count and no effect."""

from __future__ import annotations

import asyncio
import struct

import pytest

from controller.consensus.dledger_engine import INTRODUCTION, DledgerEngine
from controller.consensus.engine import RaftSettings
from controller.consensus.members import ControllerNode
from controller.consensus.wire import DLEDGER_MAGIC, FRAME_BYTES_MAX, MAGIC, RANDOM_BYTES, SecureChannel, stretch
from controller.raft.messages import REGULAR, AppendEntries, Join, VoteRequest, encode
from tests.sim.raft.machines import Words
from tests.support.ports import free_port

SECRET = b"a secret of the controllers"
HARM = encode(AppendEntries(99, 1, 2, 1, 0, [(REGULAR + b"harm", 2, 99)]))


class Member:
    """A controller's socket in a test's hand; it knows the secret."""

    def __init__(self, reader, writer, node_id, magic=DLEDGER_MAGIC):
        self.reader, self.writer = reader, writer
        self.channel = SecureChannel(stretch(SECRET), node_id, None, b"r" * RANDOM_BYTES, dialed="n1", magic=magic)

    async def prove(self):
        """Both are proven: the engine has said who it is."""
        self.writer.write(self.channel.hello())
        async with asyncio.timeout(20):
            while True:
                answer, contents = self.channel.feed(await self.reader.read(4_096))
                self.writer.write(answer)
                if any(each.startswith(INTRODUCTION) for each in contents):
                    return

    async def closed(self):
        """Until the engine has closed the connection."""
        async with asyncio.timeout(20):
            try:
                while await self.reader.read(4_096):
                    pass
            except ConnectionError:
                pass


@pytest.fixture
async def engine(tmp_path):
    """n1 of three; the others do not run, and a test speaks for n2."""
    nodes = {each: ControllerNode(each, "127.0.0.1", 1, free_port()) for each in ("n1", "n2", "n3")}
    made = DledgerEngine(tmp_path, Words(), nodes, "n1", SECRET, RaftSettings())
    await made.start()
    yield made
    await made.stop()


async def member(engine, node_id="n2", magic=DLEDGER_MAGIC):
    return Member(*await asyncio.open_connection("127.0.0.1", engine._own.raft_port), node_id, magic)


def effects(engine):
    status = engine.status()
    return status["term"], status["applied"], status["log_entries"], engine._machine.words


def refused(capsys):
    """Log lines about refused connections."""
    said = capsys.readouterr()
    return [line for line in (said.out + said.err).splitlines() if "controller_refused" in line]


def forged(channel):
    frame = channel.seal(HARM)
    return frame[:-1] + bytes([frame[-1] ^ 1])


def replayed(channel):
    frame = channel.seal(encode(Join(0, 1)))
    return frame + frame


def cut_and_followed(channel):
    return channel.seal(HARM)[:-3] + channel.seal(HARM)


def too_short(_channel):
    return struct.pack("<I", 3) + b"abc"


def oversized(_channel):
    return struct.pack("<I", FRAME_BYTES_MAX + 1)


def no_message(channel):
    return channel.seal(b"\xc1 nothing that a controller says")


def no_members(channel):
    entry = (b"\x02 no members", 2, 99)
    return channel.seal(encode(AppendEntries(1, 1, 1, 1, 0, [entry])))


def bad_introduction(channel):
    return channel.seal(INTRODUCTION + struct.pack(">I", 1) + b"\xc1")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (forged, "its bytes were changed on the way"),
        (replayed, "its bytes were changed on the way"),
        (cut_and_followed, "its bytes were changed on the way"),
        (too_short, "a frame of 3 bytes"),
        (oversized, f"at most {FRAME_BYTES_MAX} are taken"),
        (no_message, "no message of a controller"),
        (bad_introduction, "an introduction of a controller"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_a_bad_frame_ends_the_connection_and_nothing_is_applied(engine, capsys, make, words):
    """One log line that says why, one more in the count, and term, log and state as before."""
    peer = await member(engine)
    await peer.prove()
    before = effects(engine)
    assert refused(capsys) == []
    peer.writer.write(make(peer.channel))
    await peer.closed()
    (line,) = refused(capsys)
    assert words in line
    assert engine.status()["refused_connections"] == 1
    assert effects(engine) == before
    assert engine._links.connected == []
    again = await member(engine)
    await again.prove()  # the same member is welcome with sound frames
    again.writer.close()


async def test_half_a_frame_does_nothing_when_the_connection_ends(engine):
    """A member that dies in the middle of one is no attacker: it is gone, and not counted as refused."""
    peer = await member(engine)
    await peer.prove()
    before = effects(engine)
    peer.writer.write(peer.channel.seal(HARM)[:-1])
    await peer.writer.drain()
    peer.writer.close()
    async with asyncio.timeout(20):
        while engine._links.connected:
            await asyncio.sleep(0.002)
    assert effects(engine) == before
    assert engine.status()["refused_connections"] == 0


@pytest.mark.parametrize(
    ("node_id", "magic", "words"),
    [
        ("n1", DLEDGER_MAGIC, "it has the node id of this controller, n1: give each controller its own"),
        ("n2", MAGIC, "set controller.raft_engine to the same on each"),
    ],
)
async def test_a_member_that_is_set_up_wrongly_is_told_in_the_log_what_to_do(engine, capsys, node_id, magic, words):
    """Another one with this name, and another engine."""
    peer = await member(engine, node_id, magic)
    peer.writer.write(peer.channel.hello())
    await peer.closed()
    (line,) = refused(capsys)
    assert words in line
    assert engine.status()["refused_connections"] == 1


async def test_an_entry_that_names_no_members_is_the_senders_fault(engine, capsys):
    """A command of the group's own that cannot be read: refused before the log has it."""
    peer = await member(engine)
    await peer.prove()
    before = effects(engine)
    peer.writer.write(no_members(peer.channel))
    await peer.closed()
    (line,) = refused(capsys)
    assert "an entry names no members" in line
    assert effects(engine)[2:] == before[2:]


async def test_a_stale_term_is_answered_with_the_term_that_counts(engine):
    """The sender catches up; its request changes nothing."""
    peer = await member(engine)
    await peer.prove()
    engine._node.raft.admitted = True
    engine._node.raft.hard = type(engine._node.raft.hard)(7, None)
    peer.writer.write(peer.channel.seal(encode(VoteRequest(3, 9, 9))))
    async with asyncio.timeout(20):
        contents = []
        while not any(each[:1] == b"\x94" and each[1] == 2 for each in contents):
            contents = peer.channel.feed(await peer.reader.read(4_096))[1]
    (answer,) = [each for each in contents if each[:1] == b"\x94" and each[1] == 2]
    assert answer[2] == 7
    assert engine.status()["term"] == 7
