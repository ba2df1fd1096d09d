"""A simulated TCP between hosts: listeners, connections, and what a network does to them.

    dial ──▶ half the round trip ──▶ accept ──▶ half the round trip ──▶ connection_made at both ends

Bytes of one direction arrive in order, in pieces of any size, after a time that is drawn. A direction that is cut
delivers nothing until it heals, and a dial over it waits; a process that ends resets its connections as its kernel
does, while a machine without power says nothing until it is dialled or written to after its return. A sender whose
bytes do not leave is paused as by a full socket.
Invariant: what arrives is a prefix of what was sent; an end hears of the end of its connection once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.sim.whole.loop import Host, World

SOCKET_BYTES = 256 * 1024
"""What the kernels of both sides hold."""
FIRST_PORT = 40_000


class Listener:
    """A listening port; has what the product uses of `asyncio.Server`."""

    def __init__(self, network: Network, host: Host, factory: Callable[[], Any], port: int) -> None:
        self.network, self.host, self.boot, self.factory, self.port = network, host, host.boot, factory, port
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        """Address and port."""
        return self.host.address, self.port

    def close(self) -> None:
        """Accept no more."""
        self.network.forget(self)

    async def wait_closed(self) -> None:
        """It is closed at once."""


class Network:
    """All connections of one schedule."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cuts: set[tuple[str, str]] = set()
        """(from, to) addresses between which nothing passes."""
        self.delay_s: dict[tuple[str, str], float] = {}
        """Extra time of one direction."""
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._ends: list[End] = []
        self._next_port = FIRST_PORT

    # -- ports

    def listen(self, host: Host, factory: Callable[[], Any], address: str, port: int) -> Listener:
        """Open a port. Raises OSError when it is taken."""
        port = port or self.free_port()
        key = (address, port)
        known = self._listeners.get(key)
        if known is not None and known.boot == known.host.boot:
            raise OSError(98, "address already in use")
        listener = self._listeners[key] = Listener(self, host, factory, port)
        return listener

    def forget(self, listener: Listener) -> None:
        """A port is closed."""
        key = (listener.host.address, listener.port)
        if self._listeners.get(key) is listener:
            del self._listeners[key]

    def free_port(self) -> int:
        """A port nobody has."""
        self._next_port += 1
        return self._next_port

    # -- connections

    async def dial(self, host: Host, factory: Callable[[], Any], address: str, port: int) -> tuple[Any, Any]:
        """Connect. Raises ConnectionRefusedError."""
        loop = host.loop
        assert loop is not None
        answered: asyncio.Future[Listener | None] = loop.create_future()
        boot = host.boot

        def back(listener: Listener | None) -> None:
            if host.boot == boot and not answered.done():
                answered.set_result(listener)

        def arrived() -> None:
            listener = self._listeners.get((address, port))
            alive = listener is not None and listener.boot == listener.host.boot
            self.pass_on(address, host.address, lambda: self._on(host, back, listener if alive else None))

        self.pass_on(host.address, address, arrived)
        listener = await answered
        if listener is None or listener.boot != listener.host.boot:
            raise ConnectionRefusedError(111, f"nobody listens at {address}:{port}")
        protocol = factory()
        here, there = End(self, host, protocol), End(self, listener.host, None)
        here.peer, there.peer = there, here
        here.name, there.name = (host.address, self.free_port()), (address, port)
        self._ends += [here, there]
        self._on(listener.host, there.accepted, listener.factory)
        protocol.connection_made(here)
        return here, protocol

    def pass_on(self, source: str, target: str, then: Callable[[], object]) -> None:
        """Something small crosses the network; it is sent again while the way is cut."""

        def cross() -> None:
            if (source, target) in self.cuts:
                self.world.after(0.2, cross)
            else:
                then()

        self.world.after(self.latency_s(source, target), cross)

    def latency_s(self, source: str, target: str) -> float:
        """Time of one way."""
        chance = self.world.chance
        usual = chance.uniform(0.0001, 0.0008) if chance.random() < 0.97 else chance.uniform(0.001, 0.02)
        return usual + self.delay_s.get((source, target), 0.0)

    def _on(self, host: Host, function: Callable[..., object], *args: Any) -> None:
        """Have the kernel of a host tell its process something."""
        if host.loop is not None:
            host.loop.call_soon(function, *args)

    # -- faults

    def process_ended(self, host: Host, *, silently: bool) -> None:
        """Its connections are reset, or their peers learn nothing yet."""
        for end in [each for each in self._ends if each.host is host]:
            end.is_dead = True
            if not silently:
                end.reset_peer()
        self._ends = [each for each in self._ends if not each.is_over()]

    def heal(self) -> None:
        """Everything passes again."""
        self.cuts.clear()
        self.delay_s.clear()


class NoOptions:
    """What takes the options of a socket: this network never loses bytes without an end of the connection."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Nothing to do."""


class End(asyncio.Transport):
    """One end of a connection: the transport of a protocol."""

    def __init__(self, network: Network, host: Host, protocol: Any) -> None:
        super().__init__()
        self.network, self.host, self.boot, self.protocol = network, host, host.boot, protocol
        self.peer: End
        self.name: tuple[str, int] = ("", 0)
        self.is_dead = False
        """Its process has ended."""
        self._closing = self._lost = False
        self._reading = True
        self._high, self._low = 65_536, 16_384
        self._is_full = False
        self._sent: deque[bytes] = deque()
        """On the way to the peer."""
        self._sent_bytes = 0
        self._is_moving = False
        self._arrived: deque[bytes] = deque()
        """Waits while reading is paused."""
        self._ends_after = self._is_aborted = False

    def accepted(self, factory: Callable[[], Any]) -> None:
        """The listening process makes its protocol."""
        if self._lost:
            return
        self.protocol = factory()
        self.protocol.connection_made(self)
        self._read()

    # -- what protocols use

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.peer.name
        if name == "sockname":
            return self.name
        return NoOptions() if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65_536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._sent_bytes - SOCKET_BYTES)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def write(self, data: Any) -> None:
        if self._closing or self.boot != self.host.boot or not len(data):
            return
        self._sent.append(bytes(data))
        self._sent_bytes += len(data)
        self._move()
        if not self._is_full and self.get_write_buffer_size() > self._high:
            self._is_full = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(each) for each in list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.network._on(self.host, self._read)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._move()
            if not self._sent:
                self.network._on(self.host, self._end, None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = self._is_aborted = True
            self._sent.clear()
            self._sent_bytes = 0
            self.network._on(self.host, self._end, None)
            self.reset_peer()

    # -- the way

    def _move(self) -> None:
        """Begin to carry what was written, or the end."""
        if not self._is_moving:
            self._is_moving = True
            network = self.network
            network.world.after(network.latency_s(self.host.address, self.peer.host.address), self._cross)

    def _cross(self) -> None:
        """As much as the network takes at once arrives."""
        network, peer = self.network, self.peer
        if (self.host.address, peer.host.address) in network.cuts:
            network.world.after(0.05, self._cross)
            return
        self._is_moving = False
        if peer.is_dead or peer.boot != peer.host.boot or (peer._lost and self._sent):
            if peer.host.is_up:  # its kernel knows no such connection
                self._reset()
            return
        if self._sent:
            data = b"".join(self._sent)
            self._sent.clear()
            if len(data) > 1 and network.world.chance.random() < 0.1:
                at = network.world.chance.randrange(1, len(data))
                data, rest = data[:at], data[at:]
                self._sent.append(rest)
            self._sent_bytes -= len(data)
            peer._arrived.append(data)
            network._on(peer.host, peer._read)
            if not self.is_dead:
                network._on(self.host, self._drained)
        if self._sent:
            self._move()
        elif self._closing and not self._is_aborted:
            peer._ends_after = True
            network._on(peer.host, peer._read)
            network._on(self.host, self._end, None)
            if self._arrived:  # a kernel that drops what was not read resets the connection
                self.reset_peer()

    def _drained(self) -> None:
        if self._is_full and self.get_write_buffer_size() <= self._low and not self._lost:
            self._is_full = False
            self.protocol.resume_writing()

    def _read(self) -> None:
        """The process takes what has arrived."""
        protocol = self.protocol
        while self._arrived and self._reading and protocol is not None and not self._lost and not self._closing:
            data = self._arrived.popleft()
            if isinstance(protocol, asyncio.BufferedProtocol):
                room = protocol.get_buffer(len(data))
                size = min(len(room), len(data))
                room[:size] = data[:size]
                if size < len(data):
                    self._arrived.appendleft(data[size:])
                protocol.buffer_updated(size)
            else:
                protocol.data_received(data)
            protocol = self.protocol
        if self._ends_after and not self._arrived and protocol is not None and not self._lost:
            protocol.eof_received()
            self._closing = True
            self._end(None)

    # -- the end

    def reset_peer(self) -> None:
        """The other side is told that this connection is no more."""
        peer, network = self.peer, self.network
        network.pass_on(self.host.address, peer.host.address, peer._reset)

    def _reset(self) -> None:
        self.network._on(self.host, self._end, ConnectionResetError(104, "connection reset by peer"))

    def _end(self, error: Exception | None) -> None:
        if self._lost or self.is_dead or self.boot != self.host.boot:
            return
        self._closing = self._lost = True
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def is_over(self) -> bool:
        """Whether nothing happens here any more."""
        return (self._lost or self.is_dead) and (self.peer._lost or self.peer.is_dead)
