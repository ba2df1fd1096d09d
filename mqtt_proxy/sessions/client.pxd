# Types of client.py; see remoting/native/typed.py.
cimport cython

from mqtt_proxy.access.permissions cimport Permissions
from mqtt_proxy.delivery.delivery cimport Delivery
from mqtt_proxy.mqtt.session.session cimport Session
from mqtt_proxy.sessions.qos2 cimport Qos2Exchanges
from mqtt_proxy.publishing.inbound cimport Inbound

cdef class Client:
    cdef public object _client_id, _dialog, _ownership, _services, _subscriptions, _wire, user
    cdef public Delivery _delivery
    cdef public Qos2Exchanges _exact
    cdef public Inbound _inbound
    cdef public Permissions _may
    cdef public Session _session
    cdef public long long _asked_epoch, _fenced_epoch, since_ms
    cdef public long _unbegun
    cdef public bint _ended

    cpdef on_events(self, list events)
    @cython.locals(inbound=Inbound)
    cpdef _published(self, event)
    cpdef Inbound _publishing(self)
    cpdef _acknowledged(self, event)
