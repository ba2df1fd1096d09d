"""The front driver: serves the plain sockets of MQTT clients through epoll, inside the event loop.

    loop --add_reader(epoll)--> Driver.ready: epoll_wait -> for each socket: recv -> receiver.receive(bytes)
    receiver -> Socket.write: send immediately; what the kernel does not take is kept until EPOLLOUT

A receiver is a `listening.connection.Connection` or any object with its `receive`, `pause_writing`, `resume_writing`
and `connection_lost`; a `Socket` is its `Wire`, with asyncio's rules: after `close` nothing is received;
`connection_lost` is the last call, made once, in a later turn of the loop.

The kernel reports each change once (EPOLLET), so pausing and resuming cost no system call: a socket that may have more
(its read was full, or its peer has closed) or was paused is queued in `pending` instead.
Invariants
- A turn reads at most `read_bytes_max` from one socket and starts no new read beyond `TURN_BYTES_MAX`; sockets that
have to wait come first in the next turn, in order, so that none starves and the loop's other callbacks run too.
- An event counts only if its generation is that of the socket that now has the descriptor.
- `fd` is -1 once the descriptor is closed. Only this class closes it.
`accept` and `peer_name` take a connection from a listening socket, and its peer's address, with one system call each
and no socket object; the descriptor is non-blocking and not inherited by child processes. Both are stateless and may
be called on any thread. Linux only; elsewhere connections use the loop's transports. Loop rule: one driver per loop,
on its thread. System calls do not block and keep the interpreter's lock: releasing it would cost more than the calls.
"""

import os

import cython
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.errno import EAGAIN, ECONNABORTED, EINTR, errno
from cython.cimports.remoting.native.compiled import kernel

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")


def accept(listening: cython.int) -> tuple[int, object] | None:
    """Accept a connection: return its descriptor and its peer's (address, port); None when none is waiting.
    Raises OSError when the kernel gives none.
    """
    name: kernel.sockaddr_storage
    length: kernel.socklen_t = cython.sizeof(kernel.sockaddr_storage)
    address: cython.pointer(kernel.sockaddr) = cython.cast(cython.pointer(kernel.sockaddr), cython.address(name))
    fd: cython.int = kernel.accept4(
        listening, address, cython.address(length), kernel.SOCK_NONBLOCK | kernel.SOCK_CLOEXEC
    )
    if fd >= 0:
        return fd, named(address, length)
    if errno in (EAGAIN, EINTR, ECONNABORTED):
        return None
    raise OSError(errno, os.strerror(errno))


def peer_name(fd: cython.int) -> tuple[str, int] | None:
    """Return the peer's (address, port); None when the socket is no longer connected."""
    name: kernel.sockaddr_storage
    length: kernel.socklen_t = cython.sizeof(kernel.sockaddr_storage)
    address: cython.pointer(kernel.sockaddr) = cython.cast(cython.pointer(kernel.sockaddr), cython.address(name))
    if kernel.getpeername(fd, address, cython.address(length)):
        return None
    return named(address, length)


@cython.cfunc
def named(address: cython.pointer(kernel.sockaddr), length: kernel.socklen_t):
    """Return the (address, port) of an IPv4 or IPv6 socket; None for any other."""
    host: cython.char[64]  # an IPv6 address and its interface
    port: cython.int
    if address.sa_family == kernel.AF_INET:
        port = cython.cast(cython.pointer(kernel.sockaddr_in), address).sin_port
    elif address.sa_family == kernel.AF_INET6:
        port = cython.cast(cython.pointer(kernel.sockaddr_in6), address).sin6_port
    else:
        return None
    if kernel.getnameinfo(address, length, host, 64, cython.NULL, 0, kernel.NI_NUMERICHOST):
        return None
    text: cython.p_char = host
    return text.decode("ascii"), kernel.ntohs(port)


EVENTS_MAX = cython.declare(cython.int, 256)
"""Most events taken from the kernel in one turn."""
TURN_BYTES_MAX = cython.declare(cython.Py_ssize_t, 1 << 20)
"""A turn that has read this much leaves the rest for the next one."""
INPUT = cython.declare(cython.uint, kernel.EPOLLIN | kernel.EPOLLRDHUP | kernel.EPOLLHUP | kernel.EPOLLERR)
ENDS = cython.declare(cython.uint, kernel.EPOLLRDHUP | kernel.EPOLLHUP | kernel.EPOLLERR)
OUTPUT = cython.declare(cython.uint, kernel.EPOLLOUT | kernel.EPOLLHUP | kernel.EPOLLERR)
WATCHED = cython.declare(cython.uint, kernel.EPOLLIN | kernel.EPOLLRDHUP | kernel.EPOLLET)


class Socket:
    """One connected socket: passes input and events to its receiver, and output to the kernel."""

    def __cinit__(self) -> None:
        self.fd = -1
        self.high = 65_536
        self.low = 16_384

    # -- the wire ------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send, or keep what the kernel does not take until the socket is writable."""
        length: cython.Py_ssize_t = len(data)
        if self.closing or self.ending or length == 0:
            return
        if self.kept_bytes:
            self.keep(data, 0)
            return
        sent: cython.Py_ssize_t = kernel.send(self.fd, PyBytes_AS_STRING(data), length, kernel.MSG_NOSIGNAL)
        if sent == length:
            return
        if sent < 0:
            if errno not in (EAGAIN, EINTR):
                self.lose(OSError(errno, os.strerror(errno)))
                return
            sent = 0
        self.keep(data, sent)

    def close(self) -> None:
        """Send what is kept, then close; nothing more is received."""
        if self.closing:
            return
        self.closing = True
        if not self.kept_bytes:
            self.lose(None)

    def abort(self) -> None:
        """Close without sending what is kept."""
        self.lose(None)

    def can_write_eof(self) -> bool:
        """True: one direction can be closed alone."""
        return True

    def write_eof(self) -> None:
        """Close this direction once what is kept has been sent; the peer may still send."""
        if self.closing or self.ending:
            return
        self.ending = True
        if not self.kept_bytes:
            self.ended = True
            kernel.shutdown(self.fd, kernel.SHUT_WR)

    def is_closing(self) -> bool:
        """Whether `close`, `abort` or an error has begun to end the socket."""
        return self.closing or self.fd < 0

    def is_reading(self) -> bool:
        """Whether input is read: not paused and not ending."""
        return not (self.paused or self.closing)

    def pause_reading(self) -> None:
        """Stop reading input."""
        self.paused = True

    def resume_reading(self) -> None:
        """Read input again, from a later turn on."""
        self.paused = False
        if self.pending and self.fd >= 0:
            self.driver.enqueue(self)

    def get_write_buffer_size(self) -> int:
        """Bytes kept."""
        return self.kept_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the bytes of kept output at which `pause_writing` and `resume_writing` are called."""
        if high is not None:
            self.high = high
        self.low = self.high // 4 if low is None else low

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the `peername`, or for `socket` this object, which has `fileno`."""
        if name == "socket":
            return self
        if name == "peername" and self.fd >= 0:
            return peer_name(self.fd) or default
        return default

    def fileno(self) -> int:
        """Return the descriptor, -1 when it is closed."""
        return self.fd

    # -- inside --------------------------------------------------------------------------------------------------------

    def serve(self):
        """Handle the events reported by the kernel; return the bytes read."""
        events: cython.uint = self.pending
        taken: cython.Py_ssize_t
        self.pending = 0
        if self.fd < 0:
            return 0
        if events & OUTPUT and self.kept_bytes:
            self.drain()
            if self.fd < 0:
                return 0
        if self.closing or not events & INPUT:
            return 0
        if self.paused:
            self.pending |= events & INPUT
            return 0
        taken = self.take()
        if self.fd >= 0 and taken and (events & ENDS or taken == self.driver.read_bytes_max):
            self.pending |= events & INPUT
            if not self.queued:
                self.queued = True
                self.driver.again.append(self)
        return taken

    def take(self):
        """Pass one read to the receiver; return its bytes, 0 when there was nothing or the socket has ended."""
        text: cython.p_char = PyByteArray_AS_STRING(self.driver.buffer)
        taken: cython.Py_ssize_t = kernel.recv(self.fd, text, self.driver.read_bytes_max, 0)
        if taken > 0:
            self.receiver.receive(PyBytes_FromStringAndSize(text, taken))
            return taken
        if taken == 0:
            self.close()
        elif errno == EINTR:
            self.pending |= kernel.EPOLLIN
            self.driver.enqueue(self)
        elif errno != EAGAIN:
            self.lose(OSError(errno, os.strerror(errno)))
        return 0

    def keep(self, data, at):
        """Keep what the kernel did not take, from `at` on, and watch for EPOLLOUT."""
        if self.kept is None:
            self.kept, self.kept_at = [data], at
        else:
            self.kept.append(data)
        self.kept_bytes += len(data) - at
        if not self.arming:  # stays watched: it costs nothing while there is room
            self.arming = True
            self.driver.watch(self, kernel.EPOLL_CTL_MOD, WATCHED | kernel.EPOLLOUT)
        if self.kept_bytes > self.high and not self.full:
            self.full = True
            self.receiver.pause_writing()
        return 0

    def drain(self):
        """Send what is kept; when all of it is sent, close what was to be closed after it."""
        data: bytes = self.kept[0] if len(self.kept) == 1 else b"".join(self.kept)
        if len(self.kept) > 1:
            self.kept = [data]
        sent: cython.Py_ssize_t = kernel.send(
            self.fd, PyBytes_AS_STRING(data) + self.kept_at, self.kept_bytes, kernel.MSG_NOSIGNAL
        )
        if sent < 0:
            if errno not in (EAGAIN, EINTR):
                self.lose(OSError(errno, os.strerror(errno)))
            return 0
        self.kept_at += sent
        self.kept_bytes -= sent
        if self.kept_bytes == 0:
            self.kept = None
            self.kept_at = 0
            if self.closing:
                self.lose(None)
                return 0
            if self.ending and not self.ended:
                self.ended = True
                kernel.shutdown(self.fd, kernel.SHUT_WR)
        if self.full and self.kept_bytes <= self.low:
            self.full = False
            self.receiver.resume_writing()
        return 0

    def lose(self, error):
        """Close the descriptor and call `connection_lost` in a later turn."""
        if self.fd < 0:
            return 0
        self.driver.watch(self, kernel.EPOLL_CTL_DEL, 0)
        self.driver.sockets[self.fd] = None
        kernel.close(self.fd)
        self.fd = -1
        self.closing = True
        self.kept = None
        self.kept_bytes = 0
        self.driver.loop.call_soon(self.tell, error)
        return 0

    def tell(self, error: object) -> None:
        """Call the receiver's `connection_lost`."""
        receiver, self.receiver = self.receiver, None
        receiver.connection_lost(error)


class Driver:
    """The plain sockets of one event loop, and their epoll instance."""

    def __cinit__(self) -> None:
        self.epoll = -1

    def __init__(self, loop: object, turn: object, buffer: bytearray, read_bytes_max: int) -> None:
        """`buffer` takes every read; `read_bytes_max` limits what one socket gets in a turn."""
        assert 0 < read_bytes_max <= len(buffer)
        self.loop = loop
        self.turn = turn
        self.buffer = buffer
        self.read_bytes_max = read_bytes_max
        self.sockets = []
        self.queue = []
        self.again = []
        self.epoll = kernel.epoll_create1(kernel.EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, os.strerror(errno))
        loop.add_reader(self.epoll, self.ready)

    def __dealloc__(self) -> None:
        if self.epoll >= 0:
            kernel.close(self.epoll)

    def close(self) -> None:
        """Abort the sockets that are still open and stop serving."""
        for sock in self.sockets:
            if sock is not None:
                sock.abort()
        if self.epoll >= 0:
            self.loop.remove_reader(self.epoll)
            kernel.close(self.epoll)
            self.epoll = -1

    def adopt(self, fd: cython.int, receiver: object) -> Socket:
        """Take ownership of a connected non-blocking socket and serve it. Raises OSError when epoll refuses it."""
        sock: Socket = Socket.__new__(Socket)
        sock.driver = self
        sock.receiver = receiver
        sock.fd = fd
        self.generation += 1
        sock.generation = self.generation
        while len(self.sockets) <= fd:
            self.sockets.append(None)
        self.watch(sock, kernel.EPOLL_CTL_ADD, WATCHED)
        self.sockets[fd] = sock
        return sock

    def ready(self) -> None:
        """Run one turn: serve the sockets, then run the turn's deferred work, output last."""
        self.scheduled = False
        if self.epoll < 0:
            return
        self.turn.begin()
        try:
            self.turn_over()
        finally:
            self.turn.run()

    # -- inside --------------------------------------------------------------------------------------------------------

    def turn_over(self):
        """Serve the sockets that had to wait, then those with new events."""
        left: cython.Py_ssize_t = TURN_BYTES_MAX
        index: cython.int
        fd: cython.Py_ssize_t
        told: kernel.uint64_t
        sock: Socket
        count: cython.int = kernel.epoll_wait(self.epoll, self.events, EVENTS_MAX, 0)
        if self.queue:
            left = self.serve_queue(left)
        for index in range(count):
            told = self.events[index].data.u64
            fd = cython.cast(kernel.uint32_t, told)
            sock = self.sockets[fd]
            if sock is None or sock.generation != cython.cast(kernel.uint32_t, told >> 32):
                continue
            sock.pending |= self.events[index].events
            if sock.queued:
                continue
            if left > 0:
                left -= attend(sock)
            else:
                sock.queued = True
                self.queue.append(sock)
        if self.again:
            self.queue += self.again
            self.again.clear()
        if self.queue and not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.ready)
        return 0

    def watch(self, sock, operation, wanted):
        """Change the events that epoll reports for this socket."""
        event: kernel.epoll_event
        event.events = wanted
        event.data.u64 = cython.cast(kernel.uint64_t, sock.generation) << 32 | cython.cast(cython.uint, sock.fd)
        failed: cython.bint = kernel.epoll_ctl(self.epoll, operation, sock.fd, cython.address(event)) < 0
        if failed and operation != kernel.EPOLL_CTL_DEL:
            raise OSError(errno, os.strerror(errno))
        return 0

    def enqueue(self, sock):
        """Serve this socket in the next turn."""
        if not sock.queued:
            sock.queued = True
            self.queue.append(sock)
            if not self.scheduled:
                self.scheduled = True
                self.loop.call_soon(self.ready)
        return 0

    def serve_queue(self, left):
        """Serve the waiting sockets while bytes are `left` in this turn; return what is left then."""
        sock: Socket
        waiting: list = self.queue
        served: cython.Py_ssize_t = 0
        self.queue = []
        for sock in waiting:
            if left <= 0:
                break
            served += 1
            sock.queued = False
            left -= attend(sock)
        if served < len(waiting):
            self.queue = waiting[served:] + self.queue
        return left


@cython.cfunc
@cython.exceptval(-1)
def attend(sock: Socket) -> cython.Py_ssize_t:
    """Serve one socket and return the bytes read. An exception of its receiver ends this socket only."""
    try:
        return sock.serve()
    except Exception as error:  # noqa: BLE001 - passed to the loop's exception handler
        context = {"message": "a receiver failed", "exception": error, "protocol": sock.receiver, "transport": sock}
        sock.driver.loop.call_exception_handler(context)
        sock.lose(error)
        return 0
