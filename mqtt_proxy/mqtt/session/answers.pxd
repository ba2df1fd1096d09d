# Types of answers.py; see remoting/native/typed.py.
cimport cython

from mqtt_proxy.mqtt.session.session_state cimport SessionState

cdef object _CONNECTED

@cython.final
cdef class Answers:
    cdef SessionState _session

    @cython.locals(session=SessionState, ready=bytes)
    cpdef acknowledge(self, packet_ids)
    @cython.locals(session=SessionState)
    cpdef complete(self, packet_ids)
