# Types of permissions.py; see remoting/native/typed.py.
cimport cython

from mqtt_proxy.mqtt.codec.publish cimport Publish

cdef class JudgedTopics:
    cdef object _judge, _identity
    cdef dict _masks

    @cython.locals(publish=Publish)
    cpdef first_refused(self, publishes)
    cpdef _ask(self, topic)

cdef class Permissions:
    cdef object _access, _metrics, _expiry
    cdef JudgedTopics _judged
    cdef dict _readable
    cdef public object identity
    cdef public long revision

    @cython.locals(judged=JudgedTopics)
    cpdef first_refused(self, publishes)
    @cython.locals(judged=JudgedTopics)
    cpdef tuple sift(self, list publishes)
    cpdef JudgedTopics _topics(self)
