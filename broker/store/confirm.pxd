# Types of confirm.py; see remoting/hot/typed.py.

cimport cython

cdef class Confirm:
    cdef object _error
    cdef list _fresh_listeners
    cdef object _groups
    cdef list _listeners
    cdef object _log
    cdef public object _tail
    cdef object _waiting
    cdef public long long position

    cpdef add_group(self, batch)
    cpdef when_confirmed(self, long long position, callback)
    @cython.locals(batches=list, fresh=list, position=cython.longlong, blocks=list)
    cpdef advance(self, long long durable)
