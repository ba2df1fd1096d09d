# Types of session.py; see remoting/native/typed.py.
from mqtt_proxy.mqtt.session.answers cimport Answers

cdef object _EXPECT_CONNECT, _DECIDING, _AUTHENTICATING, _CONNECTED, _CLOSED

cdef class Session(Answers):
    cpdef list feed(self, bytes data, long long now_ms)
    cpdef list _bounded_wait(self)
    cpdef _heard(self, long long now_ms)
    cpdef Py_ssize_t _consume(self, bytes data, Py_ssize_t position) except -1
    cpdef _check_size(self, int first, Py_ssize_t size_bytes)
    cpdef _handle(self, int first, bytes body)
    cpdef bytes take_bytes(self)
