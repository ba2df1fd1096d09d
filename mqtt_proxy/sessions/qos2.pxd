# Types of exact.py; see remoting/native/typed.py.
cimport cython
from remoting.transport.turn cimport soon

cdef class Qos2Exchanges:
    cdef object _flows
    cdef object _ownership
    cdef object _next
    cdef object _session
    cdef object _steps
    cdef object _wire
    cdef public bint is_under_way

    cpdef flush(self)
    cpdef acknowledged(self)
