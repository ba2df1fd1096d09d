# Types of pacing.py; see remoting/hot/typed.py.

cdef class Paced:
    cdef object _readable, _rates, _rate_clock, _counters, _rate_timer
    cdef long _paused_by
    cdef bint _pacing_over, _told
