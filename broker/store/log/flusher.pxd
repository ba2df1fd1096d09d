# Types of flusher.py; see remoting/native/typed.py.

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
