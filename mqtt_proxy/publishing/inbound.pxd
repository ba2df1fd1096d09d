# Types of inbound.py; see remoting/native/typed.py.
from mqtt_proxy.access.permissions cimport Permissions
from mqtt_proxy.mqtt.session.session cimport Session
from mqtt_proxy.mqtt.session.session_state cimport SessionState
from mqtt_proxy.publishing.publisher cimport Publisher as Publishes
from mqtt_proxy.traffic cimport Flow

cimport cython

cdef class Pacing:
    cdef object _readable, _rates, _clock, _metrics, _timer
    cdef long _paused_by
    cdef bint _over, _logged

cdef class Inbound:
    cdef object _wire, _parts, _give_up, _who
    cdef Pacing _pacing
    cdef Session _session
    cdef Publishes _publisher
    cdef Flow _flow
    cdef Permissions _may
    cdef Py_ssize_t _retained_max
    cdef bint _ended, _rated
    cdef public bytes client_id
    cdef public object counters
    cdef public bint asks, exact

    @cython.locals(state=SessionState)
    cdef _count_bytes(self)
    cpdef publish(self, list publishes)
    cpdef list _sift(self, list publishes)
    cpdef unwanted(self, packet_ids)
    cpdef confirmed(self, packet_ids)
