# Types of publish.py; see remoting/native/typed.py.
cimport cython

from remoting.transport.plain_publish cimport PlainPublish

@cython.no_gc
cdef class Publish(PlainPublish):
    cdef public bint dup
    cdef public int topic_alias
    cdef public object properties
    cdef public tuple subscription_ids

@cython.locals(one=Publish, size_bytes=Py_ssize_t, plain=cython.bint)
cpdef tuple survey(publishes, bint exact)
