# Types of exact.py; see remoting/hot/typed.py.

cdef class Exact:
    cdef object _flows
    cdef object _hold
    cdef object _next
    cdef object _session
    cdef object _steps
    cdef object _wire
    cdef public bint is_under_way

    cpdef flush(self)
    cpdef acknowledged(self)
