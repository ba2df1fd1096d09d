# Types of deliveries.py; see remoting/native/typed.py.
from mqtt_proxy.mqtt.session.session_state cimport SessionState

cdef class Deliveries(SessionState):
    cpdef long deliver_prepared(self, bytes head, payload, int qos, token) except? -2
    cpdef _put_exact(self, long packet_id, token, tuple parts)
    cpdef send_parked(self, packet_ids)
    cpdef release(self, packet_ids)
