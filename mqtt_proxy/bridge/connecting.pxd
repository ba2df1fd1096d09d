# Types of connecting.py; see remoting/hot/typed.py.
from mqtt_proxy.bridge.delivery cimport Delivery
from mqtt_proxy.bridge.exact cimport Exact
from mqtt_proxy.bridge.inbound cimport Inbound
from mqtt_proxy.bridge.permissions cimport Permissions
from mqtt_proxy.mqtt.session cimport Session

cdef class Connecting:
    cdef public object _client_id, _dialog, _hold, _services, _subscriptions, _wire, user
    cdef public Delivery _delivery
    cdef public Exact _exact
    cdef public Inbound _inbound
    cdef public Permissions _may
    cdef public Session _session
    cdef public long long _fenced_epoch
    cdef public long _unbegun
    cdef public bint _ended
