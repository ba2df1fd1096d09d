# Types of pacing.py; see remoting/native/typed.py.

cdef class Pacing:
    cdef object _readable, _rates, _clock, _metrics, _timer
    cdef long _paused_by
    cdef bint _over, _logged
