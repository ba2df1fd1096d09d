"""A client's socket as handlers see it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import pytest

from remoting.client.connection import connect
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FrameDecoder, encode_frame
from remoting.server import peer as peer_module
from remoting.server.peer import (
    ADDRESS,
    BUDGET,
    CONNECTION,
    DEADLINE,
    REFUSALS_MAX,
    SLOW,
    TOTAL,
    WAITING_MAX,
    Intake,
    IntakeLimits,
    PeerFrames,
    foreign,
    is_loopback,
)
from remoting.server.router import CHALLENGES_MAX, PROVED_ATTRIBUTE, Access, Router
from remoting.transport.failures import ConnectionLost, RequestTimeout
from remoting.transport.signature import Signer

CONNECT = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04test"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:5", True),
        ("127.8.8.8:5", True),
        ("::1:5", True),
        ("::ffff:127.0.0.1:5", True),
        ("10.0.0.1:5", False),
        ("fe80::1%eth0:5", False),
        ("::ffff:10.0.0.1:5", False),
        ("local", True),
        ("?", False),
        ("name:5", False),
    ],
)
def test_peers_on_this_machine(address, expected):
    assert is_loopback(address) is expected


async def test_a_tls_handshake_is_distinguished_from_a_frame(serve, caplog):
    server = await serve(lambda peer, command: command.reply())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
    assert await reader.read() == b""
    writer.close()
    assert "uses TLS" in caplog.text
    assert server.link_counters.violations == 1


async def test_an_unexpected_answer_is_counted(serve):
    peers = []

    def handler(peer, command):
        peers.append(peer)
        return command.reply(body=b"ok")

    server = await serve(handler)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_frame(Command(0, flag=1)) + encode_frame(Command(1)))
    (answer,) = FrameDecoder().feed(await reader.read(1_000))
    assert answer.body == b"ok"
    assert len(peers) == 1
    assert peers[0].unasked_answers == 1
    assert peers[0].loopback
    assert peers[0].attributes == {}
    writer.close()


async def asked_peer(serve):
    """A peer on a socket, and the client's side of it."""
    peers = []
    server = await serve(lambda peer, command: peers.append(peer) or command.reply())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_frame(Command(1)))
    FrameDecoder().feed(await reader.read(1_000))
    return peers[0], reader, writer


async def read_commands(reader, count):
    decoder, found = FrameDecoder(), []
    while len(found) < count:
        found += decoder.feed(await asyncio.wait_for(reader.read(100_000), 20))
    return found


async def test_a_request_of_the_server_gets_the_answer_with_its_number(serve):
    peer, reader, writer = await asked_peer(serve)
    answers = asyncio.Queue()
    for code in (7, 8):
        peer.ask(
            Command(code), lambda response, error: answers.put_nowait((response.code, bytes(response.body))), 10_000
        )
    first, second = await read_commands(reader, 2)
    assert [first.code, second.code] == [7, 8]
    assert not first.is_response
    assert not first.is_oneway
    writer.write(encode_frame(second.reply(2, body=b"two")) + encode_frame(first.reply(1, body=b"one")))
    assert [await asyncio.wait_for(answers.get(), 20) for _ in range(2)] == [(2, b"two"), (1, b"one")]
    assert peer.unasked_answers == 0
    writer.write(encode_frame(first.reply()) + encode_frame(Command(9)))
    await read_commands(reader, 1)
    assert peer.unasked_answers == 1
    writer.close()


async def test_a_request_of_the_server_fails_by_time_and_with_the_connection(serve):
    peer, _reader, writer = await asked_peer(serve)
    errors = asyncio.Queue()
    peer.ask(Command(7), lambda response, error: errors.put_nowait(error), 1)
    assert isinstance(await asyncio.wait_for(errors.get(), 20), RequestTimeout)
    peer.ask(Command(7), lambda response, error: errors.put_nowait(error), 60_000)
    writer.close()
    assert isinstance(await asyncio.wait_for(errors.get(), 20), ConnectionLost)
    with pytest.raises(ConnectionLost):
        peer.ask(Command(7), lambda response, error: None, 1_000)


async def test_a_peer_that_answers_nothing_is_asked_no_more(serve):
    peer, _reader, writer = await asked_peer(serve)
    for _ in range(peer_module.QUESTIONS_MAX):
        peer.ask(Command(7), lambda response, error: None, 60_000)
    with pytest.raises(Refused) as refused:
        peer.ask(Command(7), lambda response, error: None, 60_000)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    writer.close()


def refuse(peer, command):
    raise Refused(ResponseCode.NO_PERMISSION, f"no right to {command.code}")


async def test_a_peer_that_is_refused_again_and_again_is_cut(serve):
    """Thousands of requests in advance without reading the answers: at most a hundred of them are buffered."""
    access = Access({"key": "secret"}, keys_count=True)
    server = await serve(Router({1: refuse}, access=access), access=access)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_frame(Command(1)) * 5_000)
    with contextlib.suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 20)
    while server.peers:
        await asyncio.sleep(0.01)
    assert server.read_counts()["refusals"] == 1
    assert server.link_counters.frames_out <= REFUSALS_MAX
    writer.close()


@pytest.mark.parametrize("signer", [Signer("key", "secret"), None])
async def test_a_peer_with_a_proved_key_or_without_need_of_one_may_be_refused(serve, signer):
    """A key without the right is refused as often as it asks."""
    access = Access({"key": "secret"}, keys_count=signer is not None)
    server = await serve(Router({1: refuse}, access=access), access=access)
    connection = await connect("127.0.0.1", server.port, signer=signer)
    for _ in range(REFUSALS_MAX + 20):
        assert (await connection.request(Command(1))).code == ResponseCode.NO_PERMISSION
    assert server.read_counts()["refusals"] == 0
    await connection.close()


async def test_on_this_machine_anonymous_rights_last(serve):
    access = Access({"key": "secret"}, keys_count=True)
    server = await serve(Router({1: lambda _peer, command: command.reply()}, access=access), access=access)
    connection = await connect("127.0.0.1", server.port)
    for _ in range(REFUSALS_MAX + 20):
        assert (await connection.request(Command(1))).code == 0
    await connection.close()


async def test_from_another_machine_everything_counts_until_a_key_is_proved(serve, monkeypatch):
    """The challenge too, which needs no right, when it is requested again and again."""
    monkeypatch.setattr(peer_module, "is_loopback", lambda _address: False)
    access = Access({"key": "secret"})
    server = await serve(Router({}, access=access), access=access)
    connection = await connect("127.0.0.1", server.port)
    for _ in range(CHALLENGES_MAX):
        assert (await connection.request(Command(RequestCode.SIGN_CHALLENGE))).code == 0
    for _ in range(REFUSALS_MAX):
        assert (await connection.request(Command(RequestCode.SIGN_CHALLENGE))).code == ResponseCode.NO_PERMISSION
    with pytest.raises(ConnectionLost):
        await connection.request(Command(RequestCode.SIGN_CHALLENGE))
    assert server.read_counts()["refusals"] == 1
    await connection.close()


async def test_the_route_that_leads_to_a_refusal_is_one(serve):
    """A lookup signed with a wrong key is answered, but not for ever."""
    access = Access({"key": "secret"}, keys_count=True)
    server = await serve(Router({105: refuse}, access=access), access=access)
    connection = await connect("127.0.0.1", server.port)
    lookup = {"topic": "t", "AccessKey": "key", "Signature": "wrong"}
    for _ in range(REFUSALS_MAX):
        assert (await connection.request(Command(105, fields=dict(lookup)))).code == 0
    with pytest.raises(ConnectionLost):
        await connection.request(Command(105, fields=dict(lookup)))
    await connection.close()


async def test_a_peer_that_has_ended_is_freed_at_once(serve):
    """It may have most of a large frame; no garbage collection is waited for."""
    server = await serve(lambda peer, command: command.reply())
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_frame(Command(1, body=bytes(3_000)))[:2_000])
    while not any(peer.frames.begun for peer in server.peers):
        await asyncio.sleep(0)
    held = [weakref.ref(each) for peer in server.peers for each in (peer, peer.link, peer.frames)]
    gc.disable()
    try:
        writer.close()
        while server.peers:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [each() for each in held] == [None] * 3
    finally:
        gc.enable()


async def test_a_connection_that_has_ended_is_freed_at_once(serve):
    """Like its peer."""
    server = await serve(lambda peer, command: command.reply())
    connection = await connect("127.0.0.1", server.port)
    await connection.request(Command(1))
    held = [weakref.ref(each) for each in (connection, connection.link)]
    gc.disable()
    try:
        await connection.close()
        del connection
        await asyncio.sleep(0)
        assert [each() for each in held] == [None] * 2
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "gRPC has a port of its own"),
        (b"GET /metrics HTTP/1.1\r\n", "administration port"),
        (b"POST / HTTP/1.1\r\n", "administration port"),
        (CONNECT, "MQTT port"),
        (b"\x10\x85\x01\x00\x04MQTT\x05", "MQTT port"),
        (b"\x10\x12\x00\x06MQIsdp\x03", "MQTT port"),
    ],
)
async def test_the_kind_and_port_of_other_protocols_are_named(serve, caplog, first, said) -> None:
    assert said in foreign(first)
    server = await serve(lambda peer, command: command.reply())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(first)
    assert await reader.read() == b""
    writer.close()
    assert said in caplog.text
    assert server.link_counters.foreign == 1


@pytest.mark.parametrize(
    "first", [encode_frame(Command(105)), b"\x00", b"", b"\x10\x00\x00\x00\x00\x00\x00\x01", b"xyz"]
)
def test_frames_and_noise_are_left_to_the_decoder(first) -> None:
    assert foreign(first) == ""


class Link:
    """Records the calls to a link."""

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


def test_refusals_end_an_unauthenticated_connection(made):
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


KB = 1_024


class Socket:
    def __init__(self, *, proved: bool = True, host: str = "10.0.0.1", named: bool = False) -> None:
        self.proved, self.idle, self.held, self._host, self._named = proved, False, False, host, named

    def host(self) -> str:
        return self._host

    def names_key(self) -> bool:
        return self._named

    def pause_reading(self) -> None:
        self.held = self.idle = True

    def resume_reading(self) -> None:
        self.held = self.idle = False


@pytest.fixture
def intake() -> Intake:
    return Intake(
        IntakeLimits(
            read_bytes_max=1_000 * KB, unproven_bytes_max=300 * KB, unproven_address_bytes_max=150 * KB,
            frame_deadline_ms=20_000, frame_bytes_per_s_min=KB,
        )
    )  # fmt: skip


def test_without_a_proof_a_connection_has_its_share(intake: Intake) -> None:
    one = Socket(proved=False)
    assert intake.progress(one, 64 * KB, 15_000 * KB, 0) == ""
    assert intake.progress(one, 64 * KB + 1, 15_000 * KB, 0) == CONNECTION
    intake.finished(one, 0)
    assert (intake.unproven_bytes, intake.refused[CONNECTION]) == (0, 1)


def test_a_claimed_key_draws_on_the_share_of_its_address_and_of_all(intake: Intake) -> None:
    assert intake.progress(Socket(proved=False, named=True), 150 * KB, 15_000 * KB, 0) == ""
    assert intake.progress(Socket(proved=False), 1, 100, 0) == ADDRESS
    assert intake.progress(Socket(proved=False, host="10.0.0.2", named=True), 149 * KB, 15_000 * KB, 0) == ""
    assert intake.progress(Socket(proved=False, host="10.0.0.3"), KB, 15_000 * KB, 0) == TOTAL


def test_proved_peers_reserve_and_wait_in_order(intake: Intake) -> None:
    first, second, third = Socket(), Socket(), Socket()
    assert intake.progress(first, 8, 600 * KB, 0) == ""
    for each in (second, third):
        assert intake.progress(each, 8, 600 * KB, 0) == ""
    assert (first.held, second.held, third.held) == (False, True, True)
    assert (intake.reserved_bytes, intake.waiting) == (600 * KB, 2)
    intake.finished(first, 1)
    assert (second.held, third.held, intake.reserved_bytes) == (False, True, 600 * KB)
    intake.finished(second, 1)
    intake.finished(third, 1)
    assert (third.held, intake.reserved_bytes, intake.waiting) == (False, 0, 0)


def test_a_frame_above_the_budget_is_read_alone(intake: Intake) -> None:
    large = Socket()
    assert intake.progress(large, 8, 5_000 * KB, 0) == ""
    assert not large.held


def test_the_number_that_wait_is_bounded(intake: Intake) -> None:
    intake.progress(Socket(), 8, 1_000 * KB, 0)
    assert [intake.progress(Socket(), 8, KB, 0) for _ in range(WAITING_MAX)] == [""] * WAITING_MAX
    assert intake.progress(Socket(), 8, KB, 0) == BUDGET


def overdue(intake: Intake, now_s: float) -> list[tuple[Any, str]]:
    return list(intake.overdue(now_s))


def test_a_frame_needs_a_minimum_speed_at_any_time(intake: Intake) -> None:
    """A stalled one is cut after seconds, however much of it has arrived."""
    steady, slow = Socket(), Socket()
    intake.progress(steady, 100 * KB, 400 * KB, 0)
    intake.progress(slow, 4 * KB, 400 * KB, 0)
    assert overdue(intake, 4.9) == []
    assert overdue(intake, 5) == [(slow, SLOW)]
    intake.finished(slow, 5)
    intake.progress(steady, 105 * KB, 400 * KB, 6)
    assert overdue(intake, 10) == []
    assert overdue(intake, 15) == [(steady, SLOW)]


def test_a_frame_ends_in_time(intake: Intake) -> None:
    """However steadily it arrives; an unauthenticated peer has less time."""
    steady, stranger = Socket(), Socket(proved=False)
    for second in range(21):
        intake.progress(steady, (second + 1) * 5 * KB, 400 * KB, second)
        if second <= 10:
            intake.progress(stranger, (second + 1) * 5 * KB, 64 * KB, second)
            assert overdue(intake, second) == []
    assert overdue(intake, 10.5) == [(stranger, DEADLINE)]
    intake.finished(stranger, 10.5)
    assert overdue(intake, 20) == []
    assert overdue(intake, 20.5) == [(steady, DEADLINE)]


def test_time_does_not_run_while_this_side_does_not_read(intake: Intake) -> None:
    first, second = Socket(), Socket()
    intake.progress(first, 8, 1_000 * KB, 0)
    intake.progress(second, 8, 1_000 * KB, 0)
    assert overdue(intake, 20.5) == [(first, DEADLINE)]
    intake.finished(first, 20.5)
    assert overdue(intake, 24) == []


def test_time_in_which_this_side_was_late_is_not_charged_to_a_frame(intake: Intake) -> None:
    reader = Socket(proved=False)
    intake.progress(reader, 8, 1 * KB, 0)
    intake.excuse(30)
    assert overdue(intake, 31) == []
    assert [reason for _reader, reason in intake.overdue(45)] != []


def test_a_frame_that_was_forgotten_costs_nothing(intake: Intake) -> None:
    intake.finished(Socket(), 0)
    assert intake.reserved_bytes == 0
