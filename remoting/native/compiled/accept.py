"""Taking connections from a listening socket, and their names, with one system call each and no socket object.

Linux only, and compiled only: see `driver`. Invariant: a descriptor that comes out of here does not block and
is not inherited by programs that are started. Thread rule: any; nothing is kept.
"""

import os

import cython
from cython.cimports.libc.errno import EAGAIN, ECONNABORTED, EINTR, errno
from cython.cimports.remoting.native.compiled import kernel

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")


def accept(listening: cython.int) -> tuple[int, object] | None:
    """One connection of a listening socket: its descriptor, and (address, port) of its peer; None when nobody waits.
    OSError when none can be had.
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
    """(address, port) of the other end; None when there is none any more."""
    name: kernel.sockaddr_storage
    length: kernel.socklen_t = cython.sizeof(kernel.sockaddr_storage)
    address: cython.pointer(kernel.sockaddr) = cython.cast(cython.pointer(kernel.sockaddr), cython.address(name))
    if kernel.getpeername(fd, address, cython.address(length)):
        return None
    return named(address, length)


@cython.cfunc
def named(address: cython.pointer(kernel.sockaddr), length: kernel.socklen_t):
    """(address, port) of a socket of the internet; None for any other."""
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
