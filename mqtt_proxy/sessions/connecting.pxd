# Types of connecting.py; see remoting/native/typed.py.
from mqtt_proxy.access.permissions cimport Permissions
from mqtt_proxy.mqtt.session.session cimport Session

cdef class Connecting:
    cdef object _client, _deadline, _dialog, _event, _ownership, _services, _wire
    cdef Permissions _may
    cdef Session _session
