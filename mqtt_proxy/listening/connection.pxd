# Types of connection.py; see remoting/native/typed.py.
import cython

from mqtt_proxy.listening.loop_state cimport LoopState
from mqtt_proxy.mqtt.session.session cimport Session

cdef int _UNDECIDED
cdef int _OWNER
cdef int _OUTPUT
cdef object _DECIDING

cdef class Connection:
    cdef public Session session
    cdef public object handler
    cdef public object peer_address
    cdef public object listener
    cdef public object certificate_name
    cdef public object close_reason
    cdef public bint is_loopback
    cdef public bint over_connect_rate
    cdef public bint writable
    cdef LoopState _shared
    cdef object _host
    cdef readonly object _transport
    cdef int _pauses
    cdef bint _dirty
    cdef bint _closing
    cdef bint _reported
    cdef bint _will_due

    cpdef flush(self)
    cpdef close(self, reason)
    cpdef abort(self)
    cpdef receive(self, bytes data)
    @cython.locals(session=Session)
    cpdef write_now(self)
    @cython.locals(session=Session)
    cdef _process(self, bytes data)
    cdef _hand_on(self, list events)
    cdef _pause(self, int why)
    cdef _resume(self, int why)
