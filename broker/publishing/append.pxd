# Types of append.py; see remoting/native/typed.py.

cdef class Appender:
    cdef bint _has_exact
    cdef list _messages
    cdef object _messages_in
    cdef object _metrics
    cdef object _store
    cdef list _waiting

    cpdef now(self, list messages, stored)
