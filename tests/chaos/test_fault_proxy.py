"""The fault proxy applies its faults to real connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.fault_proxy import IN, OUT, FaultProxy

SHORT_S = 0.3
DEADLINE_S = 20.0


class Echo:
    """A server that sends back what it receives, and keeps it."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            while data := link.recv(65_536):
                with self.changed:
                    self.heard += data
                    self.changed.notify_all()
                link.sendall(data)

    def until_heard(self, data: bytes) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: data in self.heard, DEADLINE_S)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def stack() -> Iterator[tuple[FaultProxy, Echo, socket.socket]]:
    """A proxy, the server behind it and a working connection."""
    proxy, echo = FaultProxy(), Echo()
    address = proxy.add("echo", ("127.0.0.1", 0), echo.address)
    link = socket.create_connection(address, DEADLINE_S)
    link.sendall(b"first")
    assert exactly(link, 5) == b"first"
    yield proxy, echo, link
    link.close()
    proxy.close()
    echo.close()


def exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = link.recv(count - len(data))
        assert piece, "the connection has ended"
        data += piece
    return data


def silent(link: socket.socket) -> None:
    """Nothing arrives for a while."""
    link.settimeout(SHORT_S)
    with pytest.raises(TimeoutError):
        link.recv(1)
    link.settimeout(DEADLINE_S)


def test_a_cut_delays_everything_and_loses_nothing(stack: tuple[FaultProxy, Echo, socket.socket]) -> None:
    """What was sent into the cut arrives when it heals."""
    proxy, echo, link = stack
    proxy.set("echo", cut=frozenset({IN, OUT}))
    link.sendall(b"second")
    silent(link)
    assert b"second" not in echo.heard
    proxy.set("echo")
    assert exactly(link, 6) == b"second"


def test_a_cut_in_one_direction_leaves_the_other(stack: tuple[FaultProxy, Echo, socket.socket]) -> None:
    """The server receives, but its answers do not arrive; then the other way round."""
    proxy, echo, link = stack
    proxy.set("echo", cut=frozenset({OUT}))
    link.sendall(b"second")
    echo.until_heard(b"second")
    silent(link)
    proxy.set("echo", cut=frozenset({IN}))
    assert exactly(link, 6) == b"second"
    link.sendall(b"third")
    silent(link)
    assert b"third" not in echo.heard


def test_a_delay_delays(stack: tuple[FaultProxy, Echo, socket.socket]) -> None:
    """Both ways take at least the delay."""
    proxy, _, link = stack
    proxy.set("echo", delay_s=0.2)
    begun = time.monotonic()
    link.sendall(b"x")
    exactly(link, 1)
    assert time.monotonic() - begun >= 0.4


def test_reset_breaks_and_refusal_closes(stack: tuple[FaultProxy, Echo, socket.socket]) -> None:
    """Connections end; after a reset new ones are possible, under refusal they are closed at once."""
    proxy, _, link = stack
    assert proxy.reset("echo") == 1
    with contextlib.suppress(ConnectionError):
        assert link.recv(1) == b""
    address = proxy.faces["echo"].listen
    with socket.create_connection(address, DEADLINE_S) as again:
        again.sendall(b"y")
        assert exactly(again, 1) == b"y"
    proxy.set("echo", refuses=True)
    with socket.create_connection(address, DEADLINE_S) as refused, contextlib.suppress(ConnectionError):
        assert refused.recv(1) == b""


def test_a_server_that_is_down_ends_the_connection() -> None:
    """As a refused connection would, a moment later."""
    proxy = FaultProxy()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = proxy.add("nobody", ("127.0.0.1", 0), unused.getsockname())
        with socket.create_connection(address, DEADLINE_S) as link, contextlib.suppress(ConnectionError):
            assert link.recv(1) == b""
    proxy.close()
