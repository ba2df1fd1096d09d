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
