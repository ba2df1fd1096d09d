# Types of session.py; see remoting/native/typed.py.
cimport cython

from mqtt_proxy.mqtt.session.answers cimport Answers
from mqtt_proxy.mqtt.session.deliveries cimport Deliveries
from mqtt_proxy.mqtt.session.session_state cimport SessionState

cdef object _EXPECT_CONNECT, _DECIDING, _AUTHENTICATING, _CONNECTED, _CLOSED

@cython.final
cdef class Session:
    cdef public SessionState state
    cdef public Answers answers
    cdef public Deliveries deliveries
    cdef bytearray _held
    cdef Py_ssize_t _needed_bytes

    @cython.locals(state=SessionState, position=Py_ssize_t)
    cpdef list feed(self, bytes data, long long now_ms)
    cpdef _bound_wait(self)
    cpdef _note_packet(self, long long now_ms)
    @cython.locals(state=SessionState, end=Py_ssize_t, body=Py_ssize_t, length=Py_ssize_t, stop=Py_ssize_t)
    cpdef Py_ssize_t _consume(self, bytes data, Py_ssize_t position) except -1
    cpdef _check_size(self, int first, Py_ssize_t size_bytes)
    @cython.locals(state=SessionState)
    cpdef _handle(self, int first, bytes body)
    @cython.locals(out=list, joined=bytes)
    cpdef bytes take_bytes(self)
