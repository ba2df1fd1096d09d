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
    cdef _tell(self, listener, news)
    @cython.locals(batches=list, fresh=list, position=cython.longlong, blocks=list)
    cpdef advance(self, long long durable)

cdef class Flusher:
    cdef bint _asked
    cdef object _closing
    cdef object _error
    cdef bint _failed
    cdef bint _handed_over
    cdef object _inline
    cdef object _interval_s
    cdef object _on_failed
    cdef object _on_flushed
    cdef long _pause
    cdef long _pause_next
    cdef long long _position
    cdef bint _report_pending
    cdef long long _reported
    cdef object _schedule
    cdef object _sync
    cdef object _thread
    cdef object _wanted
    cdef public long long flushes_total

    cpdef request(self)
