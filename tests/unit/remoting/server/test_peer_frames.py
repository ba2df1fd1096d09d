"""What a peer's frames are to the server's accounts."""

from __future__ import annotations

import pytest

from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FrameDecoder, encode_frame
from remoting.server.access import PROVED_ATTRIBUTE, Access
from remoting.server.intake import Intake, IntakeLimits
from remoting.server.peer_frames import REFUSALS_MAX, PeerFrames


class Link:
    """What is asked of a link."""

    def __init__(self):
        self.address = "10.0.0.1:77"
        self.decoder = FrameDecoder()
        self.on_read = None
        self.writable = True
        self.closing = None
        self.held = False

    def abort(self, reason):
        self.closing = reason

    def pause_reading(self):
        self.held = True

    def resume_reading(self):
        self.held = False

    def read(self, data):
        """As a real link does with what comes."""
        self.on_read(len(self.decoder.feed(data)))


@pytest.fixture
def made():
    """A link, its peer's attributes, the account, and the peer's frames."""
    link, attributes, intake = Link(), {}, Intake(IntakeLimits(unproven_connection_bytes_max=100))
    return link, attributes, intake, PeerFrames(attributes, link, intake, Access({"key": "secret"}))


async def test_whole_frames_are_counted_and_unfinished_ones_accounted(made):
    link, _, intake, frames = made
    data = encode_frame(Command(1, body=bytes(50)))
    link.read(data * 2)
    assert (frames.frames_in, frames.begun, frames.host()) == (2, False, "10.0.0.1")
    link.read(data[:20])
    assert (frames.begun, intake.unproven_bytes) == (True, 20)
    assert not frames.names_key()
    link.read(data[20:])
    assert (frames.frames_in, frames.begun, intake.unproven_bytes) == (3, False, 0)
    link.read(data[:20])
    frames.ended()
    assert intake.unproven_bytes == 0


async def test_a_frame_that_costs_too_much_ends_the_connection(made):
    link, _, intake, frames = made
    link.read(encode_frame(Command(1, body=bytes(500)))[:200])
    assert link.closing == "unproven_connection: 200 bytes of an unfinished frame of 605"
    assert intake.refused["unproven_connection"] == 1
    assert frames.begun


def test_refusals_end_the_connection_of_who_has_proved_nothing(made):
    link, attributes, intake, frames = made
    attributes[PROVED_ATTRIBUTE] = True
    for _ in range(REFUSALS_MAX + 1):
        frames.refused()
    del attributes[PROVED_ATTRIBUTE]
    for _ in range(REFUSALS_MAX):
        frames.refused()
    assert link.closing is None
    frames.refused()
    assert link.closing.startswith("refusals")
    frames.refused()
    assert intake.refused["refusals"] == 1


def test_what_is_not_read_is_idle(made):
    link, _, _, frames = made
    assert not frames.proved
    frames.needs_no_proof = True
    assert frames.proved
    assert not frames.idle
    link.writable = False
    assert frames.idle
    link.writable = True
    frames.pause_reading()
    assert (frames.idle, link.held) == (True, True)
    frames.resume_reading()
    assert (frames.idle, link.held) == (False, False)
