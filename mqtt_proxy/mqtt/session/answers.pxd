# Types of answers.py; see remoting/native/typed.py.
from mqtt_proxy.mqtt.session.deliveries cimport Deliveries

cdef object _CONNECTED

cdef class Answers(Deliveries):
    cpdef acknowledge(self, packet_ids)
    cpdef complete(self, packet_ids)
