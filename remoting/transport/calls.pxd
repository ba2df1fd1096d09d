# Types of calls.py; see remoting/native/typed.py.
cimport cython

from remoting.protocol.frames.commands cimport Command

cdef class _Begun:
    cdef public object answered
    cdef public object code
    cdef public Py_ssize_t sweep, size, timeout_ms

cdef class Calls:
    cdef object _address, _lost, _sweeper
    cdef Py_ssize_t _in_flight_bytes_max, _in_flight_bytes
    cdef dict _pending
    cdef Py_ssize_t _begun, _sweeps
    cdef set _tasks
    cdef object _waiting
    cdef public long long _opaque
    cdef public Py_ssize_t late_answers

    @cython.locals(size=Py_ssize_t, sweep=Py_ssize_t)
    cpdef begin(self, Command command, Py_ssize_t timeout_ms, transmit, answered)
    cdef _finish(self, opaque, _Begun begun, response, error)
    cpdef answer(self, Command response)
    cpdef next_opaque(self)
    cdef _check_open(self)
    cdef bint _has_room(self, Py_ssize_t size)

cpdef answer(handler, peer, Command command)
