# Types of publish.py; see remoting/native/typed.py.
cimport cython

@cython.no_gc
cdef class Publish:
    cdef public bytes topic, payload
    cdef public int qos, packet_id
    cdef public bint retain
    cdef public bint dup
    cdef public int topic_alias
    cdef public object properties
    cdef public tuple subscription_ids
