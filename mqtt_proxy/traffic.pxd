# Types of traffic.py; see remoting/native/typed.py.
cimport cython

cdef class Windows:
    cdef object _clock
    cdef long long _begun_ms
    cdef public long long before_ms, number

@cython.final
cdef class Flow:
    cdef Windows _windows
    cdef long long _window, _begun_messages, _begun_bytes, _before_messages, _before_bytes
    cdef public long long messages, size_bytes

    cpdef add_bytes(self, long long size_bytes)
    cpdef add_messages(self, long long count)
    cdef _begin(self)
