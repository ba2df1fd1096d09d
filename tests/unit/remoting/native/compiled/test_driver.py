"""The driver on real sockets: what it reads and when, what it buffers, how each kind of end is reported."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import importlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtt_proxy.listening import native_sockets
from mqtt_proxy.listening.listener import listening_sockets
from tests.unit.remoting.native.compiled.rig import READ_BYTES, Receiver, reset, rig, take, tcp, turns, until

accept = native_sockets.core.accept
if accept is None:
    pytest.skip(f"no driver: {native_sockets.choice.reason}", allow_module_level=True)

peer_name = importlib.import_module("remoting.native.compiled.driver").peer_name


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_does_not_block_is_not_inherited_and_sends_at_once(host: str) -> None:
    """The options set by `listening_sockets` are there, and the name is the client's."""
    try:
        (listening,) = listening_sockets(host, 0)
    except OSError:
        pytest.skip(f"no {host} here")
    with listening, socket.create_connection(listening.getsockname()[:2]) as client:
        taken = accept(listening.fileno())
        assert taken is not None
        assert taken[1] == client.getsockname()[:2] == peer_name(taken[0])
        assert fcntl.fcntl(taken[0], fcntl.F_GETFL) & os.O_NONBLOCK
        assert fcntl.fcntl(taken[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        with socket.socket(fileno=taken[0]) as served:
            assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accept(listening.fileno()) is None


def test_nothing_to_accept() -> None:
    """None without a waiting client; an error for a socket that does not listen; no name without an address."""
    one, other = socket.socketpair()
    with one, other:
        assert peer_name(one.fileno()) is None
        with pytest.raises(OSError, match=r"Operation not supported|Invalid argument"):
            accept(one.fileno())
    assert peer_name(one.fileno()) is None


if native_sockets.core.driver is None:
    pytest.skip(f"no driver: {native_sockets.choice.reason}", allow_module_level=True)

TURN_BYTES = 1 << 20


async def test_bytes_in_and_out() -> None:
    """One read, one call; what is written is sent at once."""
    async with rig() as here:
        receiver, peer = here.open()
        peer.send(b"hello")
        await until(lambda: receiver.data)
        assert receiver.sizes == [5]
        receiver.wire.write(b"back")
        receiver.wire.write(b"")
        assert peer.recv(10) == b"back"
        assert receiver.wire.get_write_buffer_size() == 0
        assert receiver.wire.is_reading()
        assert not receiver.wire.is_closing()


async def test_a_socket_with_much_input_has_one_read_a_turn() -> None:
    """The loop's other callbacks and other sockets come in between; nothing is lost at the end of a full read."""
    async with rig() as here:
        talker, peer = here.open()
        other, other_peer = here.open()
        order: list[str] = []
        talker.on_data = lambda _: (order.append("talker"), here.loop.call_soon(order.append, "loop"))[0]
        other.on_data = lambda _: order.append("other")
        peer.send(bytes(READ_BYTES * 3))
        other_peer.send(b"x")
        await until(lambda: len(talker.data) == READ_BYTES * 3 and other.data)
        assert max(talker.sizes) == READ_BYTES
        assert order.index("other") < 4
        assert "loop" in order[:3]


async def test_a_turn_reads_a_bounded_amount_and_no_socket_starves() -> None:
    """Thirty sockets that always have a full read: a turn reads no more than its limit, and all get their share."""
    size = TURN_BYTES // 16
    async with rig(size) as here:
        opened = [here.open() for _ in range(30)]
        for _, peer in opened:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * size)
        turn: list[int] = [0]
        taken_in: dict[int, int] = {}

        def note(data: bytes) -> None:
            taken_in[turn[0]] = taken_in.get(turn[0], 0) + len(data)

        for receiver, peer in opened:
            receiver.on_data = note
            with contextlib.suppress(BlockingIOError):
                while True:
                    peer.send(bytes(size))
        for _ in range(12):
            turn[0] += 1
            await asyncio.sleep(0)
            for _, peer in opened:
                with contextlib.suppress(BlockingIOError):
                    peer.send(bytes(size))
        # a turn of the test's task and one of the driver are not the same: two of them may fall together
        assert max(taken_in.values()) < 2 * (TURN_BYTES + size)
        reads = [len(receiver.sizes) for receiver, _ in opened]
        assert min(reads) > 0
        assert max(reads) - min(reads) <= 3, reads


async def test_input_before_the_end_comes_first() -> None:
    """The peer's bytes and its end arrive together."""
    async with rig() as here:
        receiver, peer = here.open()
        peer.send(bytes(READ_BYTES + 10))
        peer.close()
        await until(lambda: receiver.ends)
        assert len(receiver.data) == READ_BYTES + 10
        assert receiver.ends == [None]
        assert receiver.wire.fileno() == -1


async def test_a_reset_is_an_error() -> None:
    """Reported once, with the system's text."""
    async with rig() as here:
        with tcp() as (ours, peer):
            receiver = Receiver()
            wire = here.driver.adopt(ours.detach(), receiver)
            assert wire.get_extra_info("peername") == peer.getsockname()
            assert wire.get_extra_info("socket").fileno() == wire.fileno()
            assert wire.get_extra_info("cipher", "none") == "none"
            reset(peer)
            await until(lambda: receiver.ends)
            (error,) = receiver.ends
            assert isinstance(error, ConnectionResetError)
            assert wire.get_extra_info("peername", "gone") == "gone"
            await turns()
            assert len(receiver.ends) == 1


async def test_writing_to_a_peer_that_left_ends_once_and_later() -> None:
    """Not inside the write; what is written afterwards is dropped."""
    async with rig() as here:
        receiver, peer = here.open()
        receiver.wire.pause_reading()
        peer.close()
        receiver.wire.write(b"x")
        receiver.wire.write(b"y")
        assert receiver.wire.is_closing()
        assert receiver.ends == []
        await until(lambda: receiver.ends)
        assert isinstance(receiver.ends[0], BrokenPipeError)
        receiver.wire.write(b"z")
        receiver.wire.close()
        receiver.wire.abort()
        await turns()
        assert len(receiver.ends) == 1


async def test_what_the_socket_does_not_accept_is_buffered_in_order() -> None:
    """Above the high mark writing is paused, below the low one resumed; every byte arrives, in order."""
    async with rig() as here:
        receiver, peer = here.open()
        receiver.wire.set_write_buffer_limits(high=100_000, low=10_000)
        sent = bytearray()
        while len(receiver.writable) < 1:
            piece = os.urandom(50_001)
            sent += piece
            receiver.wire.write(piece)
        assert receiver.wire.get_write_buffer_size() > 100_000
        for _ in range(3):  # pieces after a piece half sent
            piece = os.urandom(333)
            sent += piece
            receiver.wire.write(piece)
            await turns(1)
        assert await take(peer, len(sent)) == sent
        await until(lambda: receiver.writable == [False, True])
        assert receiver.wire.get_write_buffer_size() == 0
        while len(receiver.writable) < 3:  # and once more: the receiver is not notified twice
            receiver.wire.write(bytes(50_000))
        await take(peer, receiver.wire.get_write_buffer_size())


async def test_close_sends_what_is_buffered_and_abort_does_not() -> None:
    """After either of them nothing is received."""
    async with rig() as here:
        for end in ("close", "abort"):
            receiver, peer = here.open()
            written = 0
            while not receiver.writable:
                receiver.wire.write(bytes(10_000))
                written += 10_000
            peer.send(b"too late")
            getattr(receiver.wire, end)()
            assert receiver.wire.is_closing()
            assert not receiver.wire.is_reading()
            got = 0
            with contextlib.suppress(ConnectionResetError):  # what was not received makes the end a reset
                while data := await asyncio.wait_for(here.loop.sock_recv(peer, 100_000), 5):
                    got += len(data)
            assert (got == written) == (end == "close")
            await until(lambda receiver=receiver: receiver.ends == [None])
            assert not receiver.data


async def test_ending_one_side_leaves_the_other() -> None:
    """The end follows what is buffered; the peer continues until it ends its side."""
    async with rig() as here:
        for size in (3, 1_000_000):
            receiver, peer = here.open()
            assert receiver.wire.can_write_eof()
            receiver.wire.write(bytes(size))
            receiver.wire.write_eof()
            receiver.wire.write_eof()
            receiver.wire.write(b"not any more")
            await take(peer, size)
            assert await asyncio.wait_for(here.loop.sock_recv(peer, 1), 5) == b""
            peer.send(b"still here")
            await until(lambda receiver=receiver: receiver.data)
            peer.close()
            await until(lambda receiver=receiver: receiver.ends == [None])


async def test_paused_reading() -> None:
    """Nothing is received, the end included, until it is resumed; pausing inside a read works as well."""
    async with rig() as here:
        receiver, peer = here.open()
        receiver.on_data = lambda _: receiver.wire.pause_reading()
        peer.send(bytes(READ_BYTES * 2))
        await until(lambda: receiver.data)
        await turns()
        assert len(receiver.data) == READ_BYTES
        assert not receiver.wire.is_reading()
        receiver.wire.resume_reading()
        receiver.wire.pause_reading()
        await turns()
        assert len(receiver.data) == READ_BYTES
        peer.close()
        await turns()
        assert receiver.ends == []
        receiver.on_data = lambda _: None
        receiver.wire.resume_reading()
        receiver.wire.resume_reading()
        await until(lambda: receiver.ends)
        assert len(receiver.data) == READ_BYTES * 2


async def test_a_socket_closed_by_another_is_not_served() -> None:
    """Both have input in one turn; the first one's receiver closes the second, whose descriptor a third reuses."""
    async with rig() as here:
        pairs = [here.open() for _ in range(2)]
        late: list[Receiver] = []

        def close_the_other(index: int) -> Callable[[bytes], None]:
            def close(_data: bytes) -> None:
                if late:
                    return
                other = pairs[1 - index][0]
                number = other.wire.fileno()
                other.wire.abort()
                receiver, _ = here.open()
                late.append(receiver)
                assert receiver.wire.fileno() == number

            return close

        for index, (receiver, peer) in enumerate(pairs):
            receiver.on_data = close_the_other(index)
            peer.send(b"x")
        await until(lambda: any(receiver.ends for receiver, _ in pairs))
        await turns()
        assert sorted(bytes(receiver.data) for receiver, _ in pairs) == [b"", b"x"]
        assert not late[0].data
        assert not late[0].ends


async def test_a_failing_receiver_ends_its_own_socket_alone() -> None:
    """The loop's handler is called; others in the same turn are served."""
    async with rig() as here:
        heard: list[dict[str, Any]] = []
        here.loop.set_exception_handler(lambda _, context: heard.append(context))
        opened = [here.open() for _ in range(3)]

        def fail(_data: bytes) -> None:
            raise ValueError("broken")

        opened[1][0].on_data = fail
        for _, peer in opened:
            peer.send(b"x")
        await until(lambda: opened[1][0].ends)
        assert all(receiver.data == b"x" for receiver, _ in opened)
        assert [type(context["exception"]) for context in heard] == [ValueError]
        assert not opened[0][0].ends
        assert not opened[2][0].ends


async def test_descriptors_that_cannot_be_served() -> None:
    """They stay the caller's."""
    async with rig() as here:
        with Path(os.devnull).open() as file, pytest.raises(OSError) as raised:
            here.driver.adopt(file.fileno(), Receiver())
        assert raised.value.errno == errno.EPERM


async def test_closing_the_driver_ends_all_connections() -> None:
    """And does nothing twice."""
    async with rig() as here:
        receiver, peer = here.open()
        here.driver.close()
        here.driver.close()
        await until(lambda: receiver.ends == [None])
        assert await asyncio.wait_for(here.loop.sock_recv(peer, 1), 5) == b""


async def test_many_sockets_at_once() -> None:
    """More than the kernel reports in one turn, opened and closed in between."""
    async with rig() as here:
        opened = [here.open() for _ in range(400)]
        for number, (_, peer) in enumerate(opened):
            peer.send(b"%d" % number)
        await until(lambda: all(receiver.data for receiver, _ in opened))
        assert [bytes(receiver.data) for receiver, _ in opened] == [b"%d" % number for number in range(400)]
        for _, peer in opened[::2]:
            peer.close()
        await until(lambda: all(receiver.ends for receiver, _ in opened[::2]))
        assert not any(receiver.ends for receiver, _ in opened[1::2])


def test_the_same_on_uvloop() -> None:
    """The loop of a server process has polling of its own."""
    uvloop = pytest.importorskip("uvloop")
    stories = (
        test_bytes_in_and_out,
        test_a_socket_with_much_input_has_one_read_a_turn,
        test_input_before_the_end_comes_first,
        test_what_the_socket_does_not_accept_is_buffered_in_order,
        test_paused_reading,
        test_many_sockets_at_once,
    )
    for story in stories:
        uvloop.run(asyncio.wait_for(story(), 30))
