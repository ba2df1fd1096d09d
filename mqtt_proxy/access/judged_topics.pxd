# Types of judged_topics.py; see remoting/native/typed.py.
cimport cython

from mqtt_proxy.mqtt.codec.publish cimport Publish

cdef class JudgedTopics:
    cdef object _judge, _identity
    cdef dict _masks

    @cython.locals(publish=Publish)
    cpdef first_refused(self, publishes)
    cpdef _ask(self, topic)
