# Types of in_flight.py; see remoting/native/typed.py.

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
    cpdef object lane(self)
    cpdef bint must_wait(self, wake) except -1

cdef class DeliveryOrigin:
    cdef public long long queue_id

    cpdef acknowledge(self, offset)

cdef class Incoming:
    cdef public list pending
    cdef public dict exactly_once
    cdef public object aliases
    cdef Py_ssize_t _taken
    cdef dict _early
    cdef dict _answers

    cpdef say(self, packet_ids, bytes answer)
    cpdef bytes acknowledge(self, packet_ids, bytes refusal=*)
    cpdef bint take_new(self, long packet_id) except -1
    cpdef object release(self, long packet_id)
    cpdef bytes complete(self, packet_ids)
