# Types of session_state.py; see remoting/native/typed.py.
cimport cython

from mqtt_proxy.mqtt.session.in_flight cimport Incoming
from mqtt_proxy.mqtt.session.in_flight cimport Outgoing

cdef class Terms:
    cdef public object client_id, will, auth_method
    cdef public long long session_expiry_s
    cdef public Py_ssize_t packet_size_out_max
    cdef public int level, keep_alive_s
    cdef public bint bridge, client_id_assigned, clean, problem_information

@cython.final
cdef class Gathered:
    cdef public list events, publishes, acknowledged, received, released

    cpdef add(self, event)
    cpdef list publishing(self)
    cpdef list acknowledging(self)
    cpdef list receiving(self)
    cpdef list releasing(self)

@cython.final
cdef class SessionState:
    cdef public object limits, names, assigned_client_id
    cdef public object status, close_reason
    cdef public Terms terms
    cdef public Gathered gathered
    cdef public Incoming incoming
    cdef public Outgoing outgoing
    cdef public list out
    cdef public long long last_packet_ms, publish_bytes
    cdef public bint challenged

    cpdef emit(self, event)
    @cython.locals(gathered=Gathered)
    cpdef end_run(self)
    @cython.locals(gathered=Gathered, events=list)
    cpdef list take_events(self)
    cpdef fail(self, reason, detail)
    cpdef close(self, reason)
