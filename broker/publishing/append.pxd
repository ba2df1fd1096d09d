# Types of append.py; see remoting/native/typed.py.

cdef class Appender:
    cdef bint _has_exact
    cdef Py_ssize_t _count
    cdef object _messages_in
    cdef object _metrics
    cdef object _store
    cdef list _waiting
    cdef object _work

    cpdef add(self, placed, done, exact=*)
    cpdef catch_up(self)
    cpdef flush(self)
