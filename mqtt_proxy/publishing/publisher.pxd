# Types of publish.py; see remoting/native/typed.py.
cimport cython

from mqtt_proxy.link cimport Link
from remoting.transport.turn cimport soon

cdef class PublishRun:
    cdef public object origin, counters, traced
    cdef public bytes images
    cdef public list packet_ids
    cdef public Py_ssize_t size_bytes, count
    cdef public long long taken_ns

cdef class Frame:
    cdef Publisher _publisher
    cdef public list runs
    cdef public Py_ssize_t size_bytes

    @cython.locals(run=PublishRun)
    cpdef bytes images(self)
    cpdef answered(self, bytes reply, error)

cdef class Backpressure:
    cdef dict _held
    cdef Py_ssize_t _high_bytes, _low_bytes
    cdef object _pauses
    cdef public Py_ssize_t pending_bytes

    cpdef add(self, origin, Py_ssize_t size_bytes)
    cpdef settle(self, Py_ssize_t size_bytes)
    cpdef forget(self, origin)

cdef class Publisher:
    cdef Link _link
    cdef object _now_ns, _log, _drained, _lost, _traces
    cdef Py_ssize_t _frame_bytes_max, _timeout_ms, _gathered_bytes
    cdef Backpressure _pressure
    cdef list _gathered
    cdef dict _in_flight
    cdef bint _scheduled, _asks
    cdef public object counts

    @cython.locals(run=PublishRun, images=bytes, packet_ids=list, born_ms=cython.longlong, taken_ns=cython.longlong)
    cpdef take(self, origin, bytes client_id, list publishes, bint exact)
    cpdef go_on(self)
    cpdef _schedule(self)
    @cython.locals(run=PublishRun, runs=list, start=Py_ssize_t, index=Py_ssize_t, size_bytes=Py_ssize_t)
    cpdef _send_gathered(self)
    cpdef bint _disk_is_behind(self)
    cpdef _send(self, Frame frame)
    cpdef answered(self, Frame frame, bytes reply, error)
    @cython.locals(run=PublishRun, first=PublishRun, count=Py_ssize_t, waited_ns=cython.longlong)
    cpdef _confirm(self, Frame frame)
    cpdef _check_idle(self)
