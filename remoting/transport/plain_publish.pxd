# Types of plain_publish.py; see remoting/native/typed.py.
cimport cython

@cython.no_gc
cdef class PlainPublish:
    cdef public bytes topic, payload
    cdef public int qos, packet_id
    cdef public bint retain
