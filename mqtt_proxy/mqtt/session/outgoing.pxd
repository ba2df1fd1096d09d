# Types of outgoing.py; see remoting/native/typed.py.

cdef dict _NONE
cdef object _MISSING

cdef class Outgoing:
    cdef public Py_ssize_t in_flight_max
    cdef public dict window
    cdef public dict phases
    cdef public object held, aliases, steps
    cdef public long last_id, stray

    cpdef enter(self, packet_id, phase)
    cpdef long assign(self, object token) except? -1
    cpdef list resend(self)
