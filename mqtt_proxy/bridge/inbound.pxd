# Types of inbound.py; see remoting/hot/typed.py.
from mqtt_proxy.bridge.pacing cimport Paced
from mqtt_proxy.bridge.permissions cimport Permissions
from mqtt_proxy.bridge.publish cimport Publisher as Publishes
from mqtt_proxy.mqtt.session cimport Session

cdef class Inbound(Paced):
    cdef object _wire, _services, _give_up, _who
    cdef Session _session
    cdef Publishes _publisher
    cdef Permissions _may
    cdef Py_ssize_t _retained_max
    cdef bint _ended
    cdef public bytes client_id
    cdef public bint asks, exact

    cpdef publish(self, list publishes)
    cpdef list _sift(self, list publishes)
    cpdef unwanted(self, packet_ids)
    cpdef confirmed(self, packet_ids)
