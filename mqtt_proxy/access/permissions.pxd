# Types of permissions.py; see remoting/native/typed.py.
from mqtt_proxy.access.judged_topics cimport JudgedTopics

cimport cython

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
