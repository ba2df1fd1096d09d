# Types of delivery_tools.py; see remoting/native/typed.py.

from mqtt_proxy.delivery.record_cache cimport RecordCache
from mqtt_proxy.delivery.notify cimport Notifier
from mqtt_proxy.delivery.pump cimport Pump

cdef class DeliveryTools:
    cdef public RecordCache cache
    cdef public object clock
    cdef public object metrics
    cdef public Notifier notifier
    cdef public object offsets
    cdef public object puller
    cdef public Pump pump
    cdef public object shared
