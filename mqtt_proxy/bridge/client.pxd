# Types of client.py; see remoting/hot/typed.py.
cimport cython

from mqtt_proxy.bridge.connecting cimport Connecting
from mqtt_proxy.bridge.inbound cimport Inbound

cdef class Client(Connecting):
    cpdef on_events(self, list events)
    @cython.locals(inbound=Inbound)
    cpdef _published(self, event)
    cpdef Inbound _publishing(self)
    cpdef _acknowledged(self, event)
