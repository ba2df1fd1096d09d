# Types of confirm.py; see remoting/native/typed.py.

cimport cython

cdef class Confirm:
    cdef object _error
    cdef list _fresh_listeners
    cdef object _groups
    cdef list _listeners
    cdef list _until_failure
    cdef object _log
    cdef public object _tail
    cdef object _waiting
    cdef public long long position

    cpdef add_group(self, batch)
    cpdef when_confirmed(self, long long position, callback)
    cdef _call(self, listener, moved)
    @cython.locals(batches=list, fresh=list, position=cython.longlong, blocks=list)
    cpdef advance(self, long long durable)

cdef class SlowFlushes:
    cdef long _next
    cdef long _pause

    cpdef bint waits(self) except -1
    cpdef took(self, long long elapsed_ns)

cdef class FlushOutcome:
    cdef object _on_failed
    cdef object _on_flushed
    cdef long long _reported
    cdef public object error, times, monotonic_ns

    cpdef flushed(self, long long position)
    cpdef failed(self)

cdef class Flusher:
    cdef bint _asked
    cdef bint _ended
    cdef bint _handed_over
    cdef object _inline
    cdef FlushOutcome _outcome
    cdef long long _position
    cdef bint _report_pending
    cdef bint _requested
    cdef SlowFlushes _slow
    cdef object _schedule
    cdef object _sync
    cdef object _thread
    cdef public long long flushes_total

    cpdef request(self)
    cdef _want(self)
