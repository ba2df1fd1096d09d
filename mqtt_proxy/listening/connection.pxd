# Types of connection.py; see remoting/native/typed.py.
import cython
from mqtt_proxy.mqtt.session.session cimport Session
from mqtt_proxy.traffic cimport Flow, Windows
from remoting.transport.turn cimport Turn

cdef class LoopState:
    cdef public object loop
    cdef public Turn turn
    cdef public Windows windows
    cdef public object buffer
    cdef public object ring
    cdef public object driver
    cdef public object bytes_in
    cdef public object bytes_out
    cdef object _monotonic_ns
    cdef list _dirty
    cdef long long _late_ms

    @cython.locals(now_ns="long long")
    cpdef long long now_ms(self) except? -1
    cpdef write_later(self, connection)
    @cython.locals(dirty=list)
    cpdef _write_all(self)

cdef int _UNDECIDED
cdef int _OWNER
cdef int _OUTPUT
cdef object _DECIDING

cdef class MqttConnection:
    cdef public Session session
    cdef public object handler
    cdef public object peer
    cdef public object close_reason
    cdef public Flow flow_in, flow_out
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
