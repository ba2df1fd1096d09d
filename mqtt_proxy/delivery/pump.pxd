# Types of pump.py; see remoting/native/typed.py.

cdef class Pump:
    cdef dict _behind
    cdef object _log
    cdef dict _ready
    cdef bint _scheduled

    cpdef wake(self, session)
    cpdef later(self, session)
    cpdef forget(self, session)
