# Types of session_state.py; see remoting/native/typed.py.
from mqtt_proxy.mqtt.session.incoming cimport Incoming
from mqtt_proxy.mqtt.session.outgoing cimport Outgoing

cdef class SessionState:
    cdef public object limits, names, assigned_client_id
    cdef public object state, close_reason
    cdef public object client_id, session_expiry_s, keep_alive_s, will, auth_method
    cdef public object aliases_in, aliases_out, exact
    cdef public object _held
    cdef public Incoming incoming
    cdef public Outgoing outgoing
    cdef public list out, events, publishes, acknowledged, received, released
    cdef public long long last_packet_ms, publish_bytes
    cdef public Py_ssize_t packet_size_out_max, stray_acknowledgements, _needed_bytes
    cdef public int level
    cdef public bint bridge, client_id_assigned, clean, challenged, problem_information

    cpdef emit(self, event)
    cpdef _add(self, event)
    cpdef list publishing(self)
    cpdef list acknowledging(self)
    cpdef list receiving(self)
    cpdef list releasing(self)
    cpdef end_run(self)
    cpdef fail(self, reason, detail)
    cpdef close(self, reason)
