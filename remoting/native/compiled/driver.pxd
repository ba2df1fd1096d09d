# The driver's classes as C structs; what the fields are for stands in driver.py.
cimport cython
from libc.stdint cimport uint32_t

from remoting.native.compiled.kernel cimport epoll_event
from remoting.transport.turn cimport Turn

@cython.final
cdef class Socket:
    cdef Driver driver
    cdef object receiver
    cdef list kept
    cdef Py_ssize_t kept_at
    cdef Py_ssize_t kept_bytes
    cdef Py_ssize_t high
    cdef Py_ssize_t low
    cdef int fd
    cdef uint32_t generation
    cdef uint32_t pending
    cdef unsigned char queued
    cdef unsigned char paused
    cdef unsigned char closing
    cdef unsigned char ending
    cdef unsigned char ended
    cdef unsigned char arming
    cdef unsigned char full

    cdef Py_ssize_t serve(self) except -1
    cdef Py_ssize_t take(self) except -1
    cdef int drain(self) except -1
    cdef int keep(self, bytes data, Py_ssize_t at) except -1
    cdef int lose(self, object error) except -1

@cython.final
cdef class Driver:
    cdef object loop
    cdef Turn turn
    cdef object buffer
    cdef Py_ssize_t read_bytes_max
    cdef list sockets
    cdef list queue
    cdef list again
    cdef int epoll
    cdef uint32_t generation
    cdef bint scheduled
    cdef epoll_event events[256]

    cdef int watch(self, Socket sock, int operation, uint32_t wanted) except -1
    cdef int turn_over(self) except -1
    cdef int enqueue(self, Socket sock) except -1
    cdef Py_ssize_t serve_queue(self, Py_ssize_t left) except? -1
