# Types of deliveries.py; see remoting/native/typed.py.
cimport cython

from mqtt_proxy.mqtt.session.in_flight cimport Outgoing
from mqtt_proxy.mqtt.session.session_state cimport SessionState

cdef object _CONNECTED

@cython.final
cdef class Deliveries:
    cdef SessionState _session

    @cython.locals(session=SessionState, at_level_3=cython.bint, extra=Py_ssize_t, packet_id=cython.long, parts=tuple)
    cpdef long deliver_prepared(self, bytes head, payload, int qos, token) except? -2
    @cython.locals(session=SessionState)
    cpdef _leave(self, tuple parts)
    @cython.locals(out=Outgoing)
    cpdef _put_exact(self, long packet_id, token, tuple parts)
    @cython.locals(session=SessionState)
    cpdef send_parked(self, packet_ids)
    @cython.locals(session=SessionState)
    cpdef release(self, packet_ids)
