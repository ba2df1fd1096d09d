# Types of incoming.py; see remoting/native/typed.py.

cdef dict _NONE

cdef class Incoming:
    cdef public list pending
    cdef public dict exactly_once
    cdef public object aliases
    cdef Py_ssize_t _taken
    cdef dict _early
    cdef dict _said

    cpdef say(self, packet_ids, bytes said)
    cpdef bytes acknowledge(self, packet_ids, bytes refusal=*)
    cpdef bint take_new(self, long packet_id) except -1
    cpdef object release(self, long packet_id)
    cpdef bytes complete(self, packet_ids)
